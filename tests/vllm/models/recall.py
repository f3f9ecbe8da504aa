# SPDX-License-Identifier: Apache-2.0
"""The task that the trained models know: what does an alias stand for?

A prompt is a dictionary and a question, in token ids:

    BOS  filler  { link, six values, END } for each record  filler  MODE m  { a, b, link } for each alias  ASK a b'

The answer is the six values of the record that the alias (a, b) links to, and EOS. The question does not
say b itself but b', m places before it in a circle of eight. So the last token is not enough: the token before
it (a), the mode far back, and two look-ups decide. A model that has lost any part of its cache fails.
"""

import random
from dataclasses import dataclass

BOS, EOS, END, ASK = 1, 2, 3, 4
FILLER = range(8, 24)
ALIAS_A = range(24, 32)
ALIAS_B = range(32, 40)
MODES = range(40, 44)
LINKS = range(64, 128)
VALUES = range(128, 192)
ANSWER_LENGTH = 7

#: Tokens beside the records and the filler: BOS, MODE and the question.
_FIXED = 5
#: A record is 8 tokens, its alias 3.
_RECORD = 11
FEWEST_RECORDS, MOST_RECORDS = 6, 16
SHORTEST = _FIXED + _RECORD * FEWEST_RECORDS


@dataclass(frozen=True)
class Question:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def question(draw: random.Random, length: int) -> Question:
    """A question of exactly so many tokens, at least SHORTEST."""
    if length < SHORTEST:
        raise ValueError(f"a question has at least {SHORTEST} tokens, not {length}")
    count = draw.randint(FEWEST_RECORDS, min(MOST_RECORDS, (length - _FIXED) // _RECORD))
    filler = draw.choices(FILLER, k=length - _FIXED - _RECORD * count)
    split = draw.randint(0, len(filler))

    records = {link: draw.choices(VALUES, k=ANSWER_LENGTH - 1) for link in draw.sample(LINKS, count)}
    names = draw.sample([(a, b) for a in ALIAS_A for b in ALIAS_B], count)
    aliases = dict(zip(names, draw.sample(list(records), count), strict=False))
    shift = draw.randrange(len(MODES))

    # Asks for a b that another alias has too, where there is one, so that a decides.
    shared = [name for name in names if sum(other[1] == name[1] for other in names) > 1]
    a, b = draw.choice(shared or names)

    prompt = [BOS, *filler[:split]]
    for link, values in records.items():
        prompt += [link, *values, END]
    prompt += [*filler[split:], MODES[shift]]
    for (first, second), link in aliases.items():
        prompt += [first, second, link]
    prompt += [ASK, a, ALIAS_B[(b - ALIAS_B.start - shift) % len(ALIAS_B)]]
    return Question(tuple(prompt), (*records[aliases[a, b]], EOS))


def questions(seed: str, count: int, shortest: int, longest: int) -> list[Question]:
    """The same ones for the same seed."""
    draw = random.Random(seed)
    return [question(draw, draw.randint(shortest, longest)) for _ in range(count)]
