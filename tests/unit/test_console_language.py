"""The language of the console blocks: what is read, and what counts as the same output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.console import Block, CodeFile, apply_diff, differences, pages, read_page

ROOT = Path(__file__).parents[2]

PAGE = """\
<!-- console: lab -->
```python title="a.py"
print(1)
```

<!-- exit 3 -->
```console
$ python a.py \\
    --all
1
h2$ true
```

<!-- not run: needs GPUs -->

```console
$ nvidia-smi
```
"""


def test_a_page_is_read_in_order():
    file, first, second = read_page(PAGE)
    assert isinstance(file, CodeFile)
    assert (file.name, file.text) == ("a.py", "print(1)\n")
    assert isinstance(first, Block)
    assert (first.place, first.exit_code, first.reason) == ("lab", 3, "")
    assert [(one.host, one.text, one.printed) for one in first.commands] == [
        ("", "python a.py \\\n    --all", ["1"]),
        ("h2", "true", []),
    ]
    assert isinstance(second, Block)
    assert (second.reason, second.exit_code) == ("needs GPUs", 0)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb", "a\nb"),
        ("a\nb\nc\nd", "a\n...\nd"),
        ("a\nd", "a\n…\nd"),
        ("loss 0.123 at step 5", "loss ... at step 5"),
        ("[h1 0] x\n[h2 1] y", "[h2 1] y\n[h1 0] x"),
        ("done after 2.4 s", "done after 13 s"),
        ("rendezvous at 10.77.0.1:45753", "rendezvous at 10.77.0.1:1234"),
        ("logs in /tmp/x/muster/jobs/20261115-063700-train-53b5", "logs in ~/muster/jobs/20261115-063700-t-48f5"),
        ("muster: importing torch on 2 hosts\nb", "b"),
        ("[h2 1] a\nmuster: h1 has been silent for 1.6 s\nmuster: h1 is back\n[h1 0] b", "[h1 0] b\n[h2 1] a"),
        ("a\nmuster: straggler at 9:33: rank 1 on b is slowing the job down\nmuster: `muster show x` prints more", "a"),
        ("muster: h3 has been silent for 1.6 s\nb", "muster: h3 has been silent for 1.5 s\nb"),
    ],
)  # fmt: skip
def test_what_varies_makes_no_difference(printed: str, shown: str):
    assert differences(printed.splitlines(), shown.splitlines()) == ""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a", "b"),
        ("a\nb", "a"),
        ("a", "a\nb"),
        ("a\nb", "a\n...\nc"),
        ("loss 1 at step 6", "loss ... at step 5"),
        ("[h1 0] x\n[h2 1] x", "[h1 0] x\n[h1 0] x"),
        ("rendezvous at 10.77.0.1:45753", "rendezvous at 10.77.0.2:45753"),
    ],
)
def test_a_difference_is_reported(printed: str, shown: str):
    assert "the document shows" in differences(printed.splitlines(), shown.splitlines())


def test_numbers_may_vary_where_the_page_says_so():
    printed, shown = (
        ["  65536  float  1366.7  96.8   0", "[h1 0] loss 1.2e-05, 3 MB/s"],
        ["  8 float 7 1 0", "[h1 0] loss 2, 4 GB/s"],
    )
    assert differences(printed, shown, any_numbers=True) == ""
    assert differences(printed, shown) != ""
    assert differences(["[h1 0] x 1"], ["[h2 1] x 1"], any_numbers=True) != ""


def test_a_diff_makes_the_new_file_and_must_show_the_old_one():
    assert apply_diff(" a\n-b\n+c\n\n d\n", "a\nb\n\nd\n") == "a\nc\n\nd\n"
    with pytest.raises(ValueError, match="'b' is 'x' in the file"):
        apply_diff(" a\n-b\n", "a\nx\n")


def all_blocks() -> list[tuple[Path, Block]]:
    return [(page, one) for page in pages(ROOT) for one in read_page(page.read_text()) if isinstance(one, Block)]


def test_every_python_block_is_python():
    for page in pages(ROOT):
        if page.parent.name == "reference":
            continue  # signatures
        for code in re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            compile(code, page.name, "exec")


def test_what_is_typed_stands_in_a_console_block():
    for page in pages(ROOT):
        for language, first in re.findall(r"^```(\w*)[^\n]*\n([^\n]*)", page.read_text(), re.MULTILINE):
            assert language == "console" or not first.startswith("$ "), f"{page.name}: write ```console above {first}"


def test_every_console_block_is_run_or_says_why_not():
    silent = [f"{page.name}:{block.line}" for page, block in all_blocks() if not block.reason and not block.place]
    assert silent == []
    assert len(all_blocks()) > 20
