"""The site is looked at in a browser (``make docs-test``): here, that this finds what is wrong."""

import pytest
from tools import site

GOOD = "<!doctype html><link rel=icon href='data:,'><h1 id=top>A page</h1>"


@pytest.fixture
def folder(tmp_path):
    if site.chromium() is None:
        pytest.skip("no chromium here to look at pages with (Debian: apt-get install chromium)")
    (tmp_path / "index.html").write_text(GOOD + "<a href='index.html#top'>to the top</a>")
    return tmp_path


def test_a_page_without_faults_passes(folder, capsys):
    assert site.main(folder) == 0
    assert capsys.readouterr().out == "1 pages, 0 pictures, 1 links: 0 faults\n"


FAULTS = {
    "<img src='none.png'>": "the picture",
    "<script>throw new Error('it broke')</script>": "it broke",
    "<script>console.error('said so')</script>": "said so",
    "<script src='none.js'></script>": "404",
    "<a href='none.html'>x</a>": "links to none.html, which is not there",
    "<a href='index.html#none'>x</a>": "links to index.html#none, which has no such place",
    "<a href='file:///tmp'>x</a>": "links to file:///tmp",
    "<link rel=stylesheet href='http://elsewhere.invalid/x.css'>": "fetches http://elsewhere",
    "<div style='width: 900px'>wide</div>": "pixels wide on a phone",
}


def test_every_kind_of_fault_is_found(folder, capsys):
    for number, fault in enumerate(FAULTS):
        (folder / f"{number}.html").write_text(GOOD + fault)
    assert site.main(folder) == 1
    lines = capsys.readouterr().out.splitlines()
    for number, said in enumerate(FAULTS.values()):
        of_page = [line for line in lines if line.startswith(f"{number}.html: ")]
        assert any(said in line for line in of_page), (said, of_page)
    assert not [line for line in lines if line.startswith("index.html")]


def test_a_folder_without_pages_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="run make docs first"):
        site.main(tmp_path)
