"""apt's own files, parsed as apt parses them, and a source derived from one."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.targets.setup.apt_sources import AptSource, having, sources

KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJKwYBBAHaRw8BAQdAd7Z0
 -----END PGP PUBLIC KEY BLOCK-----"""


def write(root: Path, name: str, text: str) -> Path:
    file = root / "etc" / "apt" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_system_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert sources(tmp_path) == []


def test_stanzas_are_read_without_comments_and_with_options(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "sources.list.d/debian.sources",
        "# Two archives\n\nTypes: deb deb-src\n# a snapshot\nuris: http://a.test/debian "
        "http://b.test/debian/\nSuites: bookworm\n bookworm-updates\nComponents: main contrib\n"
        f"Signed-By: {KEY}\nCheck-Valid-Until: no\nDescription: ours\n  \n"
        "\nTypes: deb\nURIs: http://s.test/\nSuites: bookworm-security\nComponents: main\n",
    )
    assert sources(tmp_path) == [
        AptSource(
            file,
            ("http://a.test/debian", "http://b.test/debian/"),
            ("bookworm", "bookworm-updates"),
            ("main", "contrib"),
            (("Signed-By", KEY), ("Check-Valid-Until", "no")),
        ),
        AptSource(file, ("http://s.test/",), ("bookworm-security",), ("main",)),
    ]


def test_one_line_sources_have_options_named_as_in_stanzas(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "sources.list",
        "deb cdrom:[Debian 12 _Bookworm_ - amd64 DVD]/ bookworm main\n"
        "# deb http://off.test/debian bookworm main\n"
        "deb-src http://a.test/debian bookworm main\n"
        "  deb [ arch=amd64,arm64 lang+=de by-hash=no signed-by=/k.gpg ] http://a.test/debian "
        "bookworm main non-free # ours\n"
        "deb\thttp://b.test/debian\tbookworm-backports\tmain\n",
    )
    options = (
        ("Architectures", "amd64 arm64"),
        ("Languages-Add", "de"),
        ("By-Hash", "no"),
        ("Signed-By", "/k.gpg"),
    )
    assert sources(tmp_path) == [
        AptSource(file, ("http://a.test/debian",), ("bookworm",), ("main", "non-free"), options),
        AptSource(file, ("http://b.test/debian",), ("bookworm-backports",), ("main",)),
    ]


@pytest.mark.parametrize(
    "name",
    ["a.sources.disabled", "a.list.save", "a", "a~.list", "ä.sources", "a.sources/b.sources"],
)
def test_files_that_apt_ignores_are_ignored(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"sources.list.d/{name}", "deb http://a.test/debian bookworm main\n")
    assert sources(tmp_path) == []


@pytest.mark.parametrize("off", ["no", "No", "false", "0"])
def test_a_disabled_stanza_is_ignored(tmp_path: Path, off: str) -> None:
    stanza = "Types: deb\nURIs: http://a.test/\nSuites: bookworm\nComponents: main\n"
    write(tmp_path, "sources.list.d/a.sources", f"Enabled: {off}\n{stanza}")
    assert sources(tmp_path) == []
    write(tmp_path, "sources.list.d/a.sources", f"Enabled: yes\n{stanza}")
    assert len(sources(tmp_path)) == 1


def test_a_stanza_for_source_code_only_is_ignored(tmp_path: Path) -> None:
    stanza = "Types: deb-src\nURIs: http://a.test/\nSuites: bookworm\nComponents: main\n"
    write(tmp_path, "sources.list.d/a.sources", stanza)
    assert sources(tmp_path) == []


def test_suites_and_components_match_exactly(tmp_path: Path) -> None:
    write(
        tmp_path,
        "sources.list",
        "deb http://a.test/ bookworm-security main\ndeb http://b.test/ bookworm contrib\n"
        "deb http://c.test/ bookworm contrib main\n",
    )
    found = having(sources(tmp_path), "bookworm", "main")
    assert [source.uris for source in found] == [("http://c.test/",)]


def test_a_derived_source_is_the_same_archive_with_another_suite(tmp_path: Path) -> None:
    origin = AptSource(
        tmp_path,
        ("http://a.test/debian", "http://b.test/debian"),
        ("bookworm", "bookworm-updates"),
        ("main", "contrib"),
        (("Signed-By", KEY), ("Architectures", "amd64")),
    )
    text = origin.in_suite("bookworm-backports", "main", "Why it is there.")
    assert text.startswith("# Why it is there.\nTypes: deb\nURIs: http://a.test/debian http://b")
    file = write(tmp_path, "sources.list.d/new.sources", text)
    assert sources(tmp_path) == [
        AptSource(file, origin.uris, ("bookworm-backports",), ("main",), origin.options)
    ]
