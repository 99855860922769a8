"""Tables, lists and code spans, rendered by TensorBoard."""

from __future__ import annotations

import html
import json
import re
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.backends import _markdown

# printable, without the blanks at the ends that no code span can show
WORDS = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1).map(str.strip).filter(bool)


def rendered(markdown: str) -> str:
    """Return the HTML that TensorBoard shows."""
    with warnings.catch_warnings():
        # TensorBoard carries a copy of html5lib that warns about itself when it is imported
        warnings.filterwarnings("ignore", "html5lib's sanitizer is deprecated", DeprecationWarning)
        from tensorboard.plugin_util import markdown_to_safe_html

    return str(markdown_to_safe_html(markdown))


def cells(markdown: str) -> list[list[str]]:
    """Return the text of each cell of a rendered table, without the head."""
    rows = re.findall(r"<tr>(.*?)</tr>", rendered(markdown), re.DOTALL)
    found = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows[1:]]
    return [[html.unescape(re.sub(r"</?code>", "", cell)) for cell in row] for row in found]


@given(st.dictionaries(WORDS, WORDS, min_size=1))
@example({"a|b": "x|y", "`": "``a``", "<b>": "*x*", "\\|": "\\"})
def test_params_look_as_they_are(params: dict[str, str]) -> None:
    """No character of a name or value is taken for markdown or HTML."""
    assert cells(_markdown.params_table(params)) == [[name, value] for name, value in params.items()]


@pytest.mark.parametrize(
    ("value", "shown"), [("", '""'), ("a\nb", '"a\\nb"'), (0.1, "0.1"), (True, "true"), (None, "null")]
)
def test_other_params_are_spelled_as_json(value: object, shown: str) -> None:
    """What has no printable spelling of its own, and what is no text."""
    assert cells(_markdown.params_table({"k": value})) == [["k", shown]]


def test_tags_are_a_list_with_values() -> None:
    """A tag that is only there is only named."""
    tags = rendered(_markdown.tags_list({"a": True, "b": 3}))
    assert re.findall("<li>(.*)</li>", tags) == ["<code>a</code>", "<code>b</code>: <code>3</code>"]


def test_data_is_a_block_that_can_be_parsed() -> None:
    """Nested data is rendered as one block of JSON."""
    data = {"a": [1, {"b": "`ü`"}]}
    block = re.search(r"<code>(.*)</code>", rendered(_markdown.free_form(data)), re.DOTALL)
    assert block is not None
    assert json.loads(html.unescape(block[1])) == data


def test_a_small_matrix_is_a_table() -> None:
    """Rows are true classes and begin with their name."""
    table = _markdown.confusion_table([[5, 0.25], [2, 7]], ["yes", "n|o"])
    assert cells(table) == [["yes", "5", "0.25"], ["n|o", "2", "7"]]
    assert "epoch" not in table
    assert _markdown.confusion_table([[1]], ["a"], epoch=0).startswith("epoch 0\n\n")


def test_a_large_matrix_is_a_list_of_mistakes() -> None:
    """The most frequent first, and no correct answers."""
    classes = 60
    matrix = [[100 if i == j else 0 for j in range(classes)] for i in range(classes)]
    matrix[3][7], matrix[9][1], matrix[0][59] = 5, 9, 1
    table = _markdown.confusion_table(matrix, [f"c{i}" for i in range(classes)])
    assert cells(table) == [["c9", "c1", "9"], ["c3", "c7", "5"], ["c0", "c59", "1"]]
    everything = [[1] * classes for _ in range(classes)]
    assert len(cells(_markdown.confusion_table(everything, [f"c{i}" for i in range(classes)]))) == 50
