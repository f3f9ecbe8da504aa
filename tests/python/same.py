# SPDX-License-Identifier: Apache-2.0
"""Whether two layouts say the same, but for the names of groups, which are local to a document."""

from dataclasses import replace


def by_name(layout):
    """Streams by layer and name; their groups by number, since names are local to a document."""
    groups = [group.name for group in layout.groups]
    streams = {(one.layer, one.name): replace(one, group=str(groups.index(one.group))) for one in layout.streams}
    assert len(streams) == len(layout.streams)
    return streams


def check_equal(found, expected):
    assert [replace(group, name="") for group in found.groups] == [replace(group, name="") for group in expected.groups]
    assert found.segments == expected.segments
    assert found.worker == expected.worker
    mine, theirs = by_name(found), by_name(expected)
    assert set(mine) == set(theirs)
    for key, stream in mine.items():
        axes = {axis.name: axis for axis in stream.axes}
        assert axes == {axis.name: axis for axis in theirs[key].axes}, key
        assert replace(stream, axes=()) == replace(theirs[key], axes=()), key
