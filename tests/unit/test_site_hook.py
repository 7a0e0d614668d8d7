"""What the site makes of Markdown: links of root files, commands of console blocks, tables without a header."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs")

from tools.site_hook import LINK, on_page_content, on_page_markdown, on_post_page, site_link, support_matrix

PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="guide.md"))


def content(html: str) -> str:
    return on_page_content(html, PAGE, None, None)


@pytest.mark.parametrize(
    ("written", "on_the_site"),
    [
        ("[Slurm](docs/engines/slurm.md#srun)", "[Slurm](engines/slurm.md#srun)"),
        ("[why](CHANGELOG.md)", "[why](changelog.md)"),
        ("[home](README.md)", "[home](index.md)"),
        ("![home](docs/images/docs-home.png)", "![home](images/docs-home.png)"),
        ("[the language](tools/console.py)", "the language"),
        ("[web](https://example.org/x)", "[web](https://example.org/x)"),
        ("[below](#tests)", "[below](#tests)"),
    ],
)
def test_a_link_of_a_file_in_the_root_leads_to_the_page_of_the_site(written: str, on_the_site: str):
    assert LINK.sub(site_link, written) == on_the_site


@pytest.mark.parametrize(
    ("page", "written", "on_the_site"),
    [
        ("faq.md", "[x](../SECURITY.md#limits)", "[x](security.md#limits)"),
        ("faq.md", "[x](../README.md#support)", "[x](support.md)"),
        ("engines/index.md", "[x](../../README.md#support)", "[x](../support.md)"),
        ("engines/index.md", "[x](../hangs.md#limits)", "[x](../hangs.md#limits)"),
        ("faq.md", "[x](hangs.md)", "[x](hangs.md)"),
    ],
)
def test_a_link_from_a_page_to_a_file_in_the_root_leads_to_the_page_of_the_site(
    page: str, written: str, on_the_site: str
):
    there = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert on_page_markdown(written, there, None, None) == on_the_site


def test_a_link_to_a_file_that_is_not_on_the_site_stops_the_build_and_names_both():
    with pytest.raises(SystemExit, match=r"docs/guide\.md: pyproject\.toml"):
        on_page_markdown("[x](../pyproject.toml)", PAGE, None, None)


def test_the_copy_button_gets_the_commands_of_a_console_block_and_nothing_else():
    prompt = '<span class="gp">$ </span>'
    lines = f'{prompt}echo &quot;a&quot; \\\n    b\n<span class="go">a b</span>\n{prompt}ls\n'
    html = f'<div class="language-console highlight"><pre><span></span><code>{lines}</code></pre></div>'
    assert 'data-copy="echo &quot;a&quot; \\\n    b\nls"' in content(html)
    assert lines in content(html)


def test_a_console_block_without_a_command_stops_the_build_and_names_the_page():
    with pytest.raises(SystemExit, match=r"guide\.md: a console block begins with"):
        content('<div class="language-console highlight"><pre><code>output\n</code></pre></div>')


def test_an_empty_table_header_is_left_out_and_others_stay():
    empty = "<table>\n<thead>\n<tr>\n<th></th>\n<th></th>\n</tr>\n</thead>\n<tbody></tbody></table>"
    assert content(empty) == "<table>\n<tbody></tbody></table>"
    partly = empty.replace("<th></th>", "<th>when</th>", 1)
    assert content(partly) == partly


def test_a_page_that_would_load_something_from_the_network_stops_the_build():
    assert on_post_page('<img src="images/a.png"><a href="https://example.org">x</a>', PAGE, None)
    with pytest.raises(SystemExit, match=r"guide\.md"):
        on_post_page('<img src="https://example.org/a.png">', PAGE, None)


def test_the_support_matrix_is_the_section_of_the_readme():
    assert support_matrix("# M\n\n## Support\n\n| a |\n\n## More\n") == "# Support matrix\n\n| a |\n\n"
    with pytest.raises(SystemExit, match="Support"):
        support_matrix("# M\n")
