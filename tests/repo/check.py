#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The repository tests itself: check.py SOURCE CHECK [LIBRARY]; CHECK is a function's name below.

Each check yields findings, one line each; a check without findings passes.
"""
import os
import re
import subprocess
import sys

ROOT = ""
LIBRARY = ""


# --- reading the tree ----------------------------------------------------------------------------

def files(*suffixes, under=""):
    """Paths in the tree, relative to its root, without what builds leave there."""
    for folder, folders, names in os.walk(os.path.join(ROOT, under)):
        folders[:] = sorted(f for f in folders if not re.match(r"build|\.git$|\.venv|__pycache__", f))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), ROOT)
            if not suffixes or path.endswith(suffixes):
                yield path


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def without_comments(source):
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda match: "\n" * match.group().count("\n"), source,
                  flags=re.S)


def is_test(path):
    return re.search(r"_test\.[ch]$|/test_\w+\.h$", path)


def public_headers():
    return list(files(".h", under="include/kvferry"))


def public_functions():
    """{name: (header, line)} of every declaration that is marked KVFERRY_API."""
    found = {}
    for header in public_headers():
        source = without_comments(text(header))
        for match in re.finditer(r"^KVFERRY_API\b[^;{]*?\b(kvferry_\w+)\s*\(", source, flags=re.M):
            found[match.group(1)] = (header, source.count("\n", 0, match.start()) + 1)
    return found


# --- public symbols ------------------------------------------------------------------------------

def symbols():
    """Headers, symbol map and library name the same functions."""
    declared = set(public_functions())
    map_text = re.sub(r"#[^\n]*", "", text("src/libkvferry.map"))
    mapped = set(re.findall(r"\b(kvferry_\w+)\s*;", map_text))
    listing = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    exported = set()
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":  # the version itself
            exported.add(name.split("@")[0])
    sets = {"a public header": declared, "src/libkvferry.map": mapped, "the library": exported}
    for name in sorted(declared | mapped | exported):
        for where, names in sets.items():
            if name not in names:
                yield f"{name}: not in {where}"


def header_comments():
    """Every public function stands under a comment, with no empty line between."""
    for name, (header, line) in public_functions().items():
        lines = text(header).splitlines()
        block = line - 1
        while block > 0 and lines[block - 1].strip():
            block -= 1
        above = "\n".join(lines[block:line - 1])
        if "/*" not in above:
            yield f"{header}:{line}: {name} has no comment above it"


def manual():
    """Every public function has its place in a page of section 3, every verb of the command one in 1."""
    pages = {page: text(page) for page in files(".3", under="man")}
    for name in public_functions():
        if not any(re.search(rf"\b{name}\b", page) for page in pages.values()):
            yield f"{name}: in no man/*.3"
    for name in re.findall(r"\bkvferry_\w+\b", " ".join(pages.values())):
        if not any(re.search(rf"\b{name}\b", text(header)) for header in public_headers()) \
                and f"man/{name}.3" not in pages:
            yield f"{name}: in a manual page, but in no header"


def faults():
    """tests/faults has each public function: failed at every allocation, or named as not allocating."""
    tested = set(re.findall(r"\bkvferry_\w+\b", " ".join(
        re.findall(r"^\s*(?:FAULTS|QUIET)\(([^)]*)\)", "\n".join(map(text, files(".c", under="tests/faults"))),
                   flags=re.M))))
    for name in public_functions():
        if name not in tested:
            yield f"{name}: in no table of tests/faults"
    for name in tested - set(public_functions()):
        yield f"{name}: in a table of tests/faults, but not public"


# --- reasons -------------------------------------------------------------------------------------

def arguments(source, start):
    """The arguments of a call whose bracket opens at start."""
    depth, begin, found = 0, start + 1, []
    quoted = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
    at = start
    while at < len(source):
        string = quoted.match(source, at)
        if string:
            at = string.end()
            continue
        character = source[at]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return found + [source[begin:at].strip()]
        elif character == "," and depth == 1:
            found.append(source[begin:at].strip())
            begin = at + 1
        at += 1
    return found


def used_codes():
    """{code: place} of the literals given as a reason's code, to base_report_add or what wraps it,
    and in Python to Reason or what wraps it."""
    sources = {path: without_comments(text(path))
               for path in [*files(".c", ".h", under="src"), *files(".c", ".h", under="tools")]
               if not is_test(path)}
    takes_code = {}
    for source in sources.values():
        for match in re.finditer(r"\b(\w+)(\([^(){};]*\bconst char \*code\b)", source):
            given = arguments(source, match.start(2))
            for index, argument in enumerate(given):
                if re.search(r"\bconst char \*code$", argument):
                    takes_code[match.group(1)] = index
    found = {}
    for path, source in sources.items():
        for match in re.finditer(r"\b(%s)(\()" % "|".join(takes_code), source):
            given = arguments(source, match.start(2))
            index = takes_code[match.group(1)]
            if index < len(given):
                for code in re.findall(r'"([^"]*)"', given[index]):
                    found[code] = f"{path}:{source.count(chr(10), 0, match.start()) + 1}"
    for path in files(".py", under="bindings"):
        sources[path] = text(path)
        for match in re.finditer(r'(?:\bcode=|\.refuse\(\s*)"(\w+)"', sources[path]):
            found[match.group(1)] = f"{path}:{sources[path].count(chr(10), 0, match.start()) + 1}"
    return found, sources


def reasons():
    """docs/reasons.md lists the codes that the source uses, and no others."""
    documented = re.findall(r"^\| `(\w+)` \|", text("docs/reasons.md"), flags=re.M)
    used, sources = used_codes()
    if not used:
        yield "found no use of a reason"
    for code in sorted(set(used) - set(documented)):
        yield f"{used[code]}: {code} is not in docs/reasons.md"
    everything = "\n".join(sources.values())
    for code in documented:
        if f'"{code}"' not in everything:
            yield f"docs/reasons.md: nothing answers {code}"
        if documented.count(code) > 1:
            yield f"docs/reasons.md: {code} is listed twice"


# --- layers --------------------------------------------------------------------------------------

# What each folder of src/ may include of the others.
LAYERS = {
    "base": {"base"},
    "layout": {"base", "layout"},
    "model": {"base", "layout", "model"},
    "plan": {"base", "layout", "plan"},
    "engine": {"base", "engine"},
    "wire": {"base", "layout", "plan", "wire"},
    "node": {"base", "engine", "layout", "node", "plan", "wire"},
}
# Public headers that belong to a layer; the others (status, report, version) are everybody's.
HEADERS = {"layout.h": "layout", "model.h": "model", "plan.h": "plan", "engine.h": "engine",
           "node.h": "node"}
# An engine knows copies, but nothing else of plans and layouts.
ENGINE_KNOWS = {"kvferry_copy", "kvferry_free"}
# Pure layers do no I/O and know no threads, clocks or environment.
IMPURE = (r"\b(fopen|fputs|printf|fprintf|perror|open|read|write|close|socket|mmap|getenv|setenv|"
          r"clock_gettime|time|rand|random|pthread_\w+|sleep|usleep|system|exit|abort)\s*\(")


def layers():
    """No include and no call against the direction of the layers."""
    for path in files(".c", ".h", under="src"):
        layer = path.split("/")[1]
        source = without_comments(text(path))
        if layer not in LAYERS:
            yield f"{path}: no such layer; LAYERS in tests/repo/check.py and src/README.md list them"
            continue
        for included in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', source, flags=re.M):
            other = included.split("/")[0]
            if included.startswith("kvferry/"):
                other = HEADERS.get(included.split("/")[1], "base")
                if layer == "base" and path == "src/base/status.c" and other == "layout":
                    continue  # defines kvferry_free
                if layer == "engine" and included == "kvferry/plan.h":
                    continue  # for kvferry_copy
                if included == "kvferry/kvferry.h" and not is_test(path):
                    yield f"{path}: includes all public headers"
            if other in LAYERS and other not in LAYERS[layer]:
                yield f"{path}: {layer} must not include {included}"
        if is_test(path):
            continue
        if layer == "engine":
            for name in set(re.findall(r"\bkvferry_(?:copy|free|(?:layout|plan|request|stream|group|axis|"
                                       r"block|piece|range|model)\w*)\b", source)) - ENGINE_KNOWS:
                yield f"{path}: an engine knows no {name}"
        if layer == "wire" and re.search(r"\bkvferry_plan_\w+", source):
            yield f"{path}: messages carry block tables and workers, but nothing is planned here"
        if layer in ("layout", "model", "plan", "wire"):
            for match in re.finditer(IMPURE, source):
                yield f"{path}: {layer} is pure, but calls {match.group(1)}"
    for path in files(".c", ".h", under="tools"):
        for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text(path), flags=re.M):
            if not re.fullmatch(r"[\w/]+\.h", included) or included.split("/")[0] in LAYERS:
                yield f"{path}: a tool includes public headers and its own, not {included}"
        if re.search(r"\bbase_\w+\s*\(", without_comments(text(path))):
            yield f"{path}: a tool uses the public interface only, not base_*"


# --- files ---------------------------------------------------------------------------------------

def readmes():
    """Every folder with sources says in a README what it is."""
    folders = {"bindings", "docs", "examples", "man", "models", "scripts", "src", "tests", "tools"}
    for parent in ("src", "tests"):
        for path in files(under=parent):
            parts = path.split("/")
            if len(parts) > 2:
                folders.add("/".join(parts[:2]))
    for folder in sorted(folders):
        readme = f"{folder}/README.md"
        if not os.path.isfile(os.path.join(ROOT, readme)):
            yield f"{folder}: has no README.md"
        elif len(text(readme).split()) < 10:
            yield f"{readme}: says next to nothing"
    for page in files(".md", under="docs"):
        name = page.split("/", 1)[1]
        if name != "README.md" and f"({name})" not in text("docs/README.md"):
            yield f"{page}: not in docs/README.md"


def prose_of(path):
    """A page without its examples."""
    return re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)


def anchors(path):
    """The names that a heading of a page can be linked by, as GitHub makes them."""
    for heading in re.findall(r"^#+ +(.*?) *#*$", prose_of(path), flags=re.M):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        yield plain.replace(" ", "-")


def page_links():
    """Links between pages lead somewhere; of an installed tree, too."""
    for path in files(".md"):
        for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose_of(path)):
            if re.match(r"[a-z]+:", target):
                continue
            page, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(path), page)) if page else path
            if not os.path.exists(os.path.join(ROOT, to)):
                yield f"{path}: {target} does not exist"
            elif anchor and to.endswith(".md") and anchor not in anchors(to):
                yield f"{path}: {target} has no such heading"


def links():
    """Links between pages lead somewhere, and so do paths of the tree that pages name as code."""
    yield from page_links()
    for path in files(".md"):
        for named in re.findall(r"`((?:src|docs|tests|tools|include|man|models|scripts|examples)/[\w./-]+)`",
                                prose_of(path)):
            if not os.path.exists(os.path.join(ROOT, named)):
                yield f"{path}: {named} does not exist"


def words():
    """The tree stands alone, and nothing in it is left for later."""
    # Written in two parts, so that this file is no finding itself.
    forbidden = ["/" + "work/", "../" + "shared", "/" + "farm/", "bash" + "_jobs", "." + "library/",
                 "pypi" + ".org", "deb.debian" + ".org", "python" + "hosted", "TO" + "DO", "FIX" + "ME",
                 "XX" + "X:", "not " + "implemented"]
    for path in files():
        if path.startswith("tests/fuzz/corpus/"):
            continue
        for number, line in enumerate(text(path).splitlines(), 1):
            for word in forbidden:
                if word in line:
                    yield f"{path}:{number}: {word}"


def licences():
    """Every source file names its licence in its first lines."""
    for path in files():
        first = text(path)[:300]
        code = path.endswith((".c", ".h", ".py", ".sh")) or first.startswith("#!")
        if code and "SPDX-License-Identifier: Apache-2.0" not in first:
            yield f"{path}: no SPDX-License-Identifier: Apache-2.0"


def sizes():
    """A file has one subject and fits an afternoon's reading."""
    for path in files(".c", ".h", ".py"):
        count = text(path).count("\n")
        if count > 600:
            yield f"{path}: {count} lines; is it one subject?"


def reported(source):
    """Reports as comments name them: the ones behind a comma are of the same tracker."""
    tracker = ""
    for name, number in re.findall(r"(?:\b((?:[\w-]+/)?[\w-]+))?#(\d+)\b", source):
        tracker = name or tracker
        if tracker:
            yield f"{tracker}#{number}"


def lessons():
    """Each fault of others that the proof lists has its test, which names it; and the list has all that tests name."""
    page = text("docs/proof.md").split("## Faults that others have had", 1)[1].split("\n## ", 1)[0]
    trackers = {name.split("#")[0] for name in reported(page)}
    listed = set(reported(page))
    for line in page.splitlines():
        cells = line.split("|")
        if len(cells) != 5 or "#" not in cells[1]:
            continue
        named = re.findall(r"`([^`]+)`", cells[3])
        tests = [name for name in named if "/" in name]
        sources = {path: text(path) for path in tests if os.path.isfile(os.path.join(ROOT, path))}
        whole = "\n".join(sources.values())
        yield from (f"docs/proof.md: no file {path}" for path in tests if path not in sources)
        yield from (f"docs/proof.md: no test {name}" for name in named
                    if "/" not in name and not re.search(rf"(?m)^(static void|def) {name}\(", whole))
        yield from (f"docs/proof.md: no test names {name}"
                    for name in sorted(set(reported(cells[1])) - set(reported(whole))))
    for path in files("_test.c", ".py"):
        if is_test(path) or os.path.basename(path).startswith("test_"):
            for name in sorted(set(reported(text(path)))):
                if name.split("#")[0] in trackers and name not in listed:
                    yield f"{path}: {name} is not in the list of docs/proof.md"


CHECKS = [symbols, header_comments, manual, faults, reasons, layers, readmes, links, words, licences,
          sizes, lessons]


def main():
    global ROOT, LIBRARY
    if len(sys.argv) < 3:
        sys.exit(f"usage: check.py SOURCE {'|'.join(check.__name__ for check in CHECKS)} [LIBRARY]")
    ROOT, name = sys.argv[1:3]
    LIBRARY = sys.argv[3] if len(sys.argv) > 3 else ""
    check = {check.__name__: check for check in [*CHECKS, page_links]}[name]
    found = list(check())
    for finding in found:
        print(finding)
    print(f"{name}: {len(found)} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
