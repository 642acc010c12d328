"""Locations of landings: which texts are valid, and what they mean."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_webcollect.landing.location import Location, refuse_overlaps
from airflow_provider_webcollect.service.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "conn_id", "asset_uri", "uri", "dataset"),
    [
        ("/data/prices/", None, "file:///data/prices", "/data/prices/", ("file", "/data/prices")),
        ("/data//a/./b", None, "file:///data/a/b", "/data//a/./b", ("file", "/data/a/b")),
        ("/data/c/../a", None, "file:///data/a", "/data/c/../a", ("file", "/data/a")),
        ("//data/a", None, "file:///data/a", "//data/a", ("file", "/data/a")),
        ("/data/a://b", None, "file:///data/a:/b", "/data/a://b", ("file", "/data/a:/b")),
        ("s3://c@b", "c", "s3://b", "s3://c@b", ("s3://b", "/")),
        ("file:///data/a#b", None, "file:///data/a#b", "file:///data/a#b", ("file", "/data/a#b")),
        ("s3://b/p", None, "s3://b/p", "s3://b/p", ("s3://b", "p")),
        ("s3://c@b/p/", "c", "s3://b/p", "s3://c@b/p", ("s3://b", "p")),
        ("abfs://c@box/a b", "c", "abfs://box/a b", "abfs://c@box/a b", ("abfs://box", "a b")),
    ],
)
def test_a_text_says_where_it_is(
    text: str, conn_id: str | None, asset_uri: str, uri: str, dataset: tuple[str, str]
) -> None:
    location = Location.parse("destination", text)
    assert (location.kind, location.text, location.conn_id) == ("folder", text, conn_id)
    assert (location.asset_uri, location.uri, location.dataset) == (asset_uri, uri, dataset)


def test_a_connection_is_in_the_text_or_beside_it() -> None:
    beside = Location.parse("destination", "s3://b/p", conn_id="c")
    assert beside.uri == Location.parse("destination", "s3://c@b/p", conn_id="c").uri == "s3://c@b/p"
    with pytest.raises(InvalidArgument, match="is 'd'; s3://c@b/p names another"):
        Location.parse("destination", "s3://c@b/p", conn_id="d")
    # in Azure's own form, the container before the @ is no connection
    azure = Location.parse("destination", "abfss://box@account.dfs.core.windows.net/p")
    assert azure.conn_id is None
    # a path on this machine has no connection
    assert Location.parse("destination", "/data/a", conn_id="storage").uri == "/data/a"


def test_a_table_of_iceberg_is_known_by_its_name() -> None:
    landed = Location.parse_landed("landing", "catalog.shop.prices")
    assert landed == Location.parse("landing", "catalog.shop.prices", table_format="iceberg")
    assert landed.asset_uri == "iceberg://catalog/shop/prices"
    with pytest.raises(InvalidArgument, match="it needs a scheme"):
        Location.parse("destination", "catalog.shop.prices")
    with pytest.raises(InvalidArgument, match=r"is named catalog\.namespace\.table"):
        Location.parse("destination", "s3://b/p", table_format="iceberg")


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("simplecache::s3://b/p", "chains filesystems"),
        ("s3://b/p\n2", "no control character"),
        ("s3://b/p#", "not end with"),
        ("s3://", "it must name a bucket"),
        ("bucket/p", "it needs a scheme"),
        ("s3://b/a/../p", "segment that is empty"),
        ("", "non-empty string"),
        (None, "non-empty string"),
        (b"s3://b/p", "non-empty string"),
    ],
)
def test_a_wrong_text_is_refused_with_its_rule(value: Any, rule: str) -> None:
    for parse in (Location.parse, Location.parse_landed):
        with pytest.raises(InvalidArgument, match=rule) as refused:
            parse("destination", value)
        assert refused.value.name == "destination"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("s3://c@b/p", "s3://c@b/p/q/"),
        ("/data", "file:///data/a"),
        ("gs://b", "gs://b/p"),
        ("/a", "/a/"),
        ("s3a://b/p", "s3://b/p/q"),
        ("gs://b", "gcs://b/p"),
    ],
)
def test_folders_overlap_however_they_are_written(outer: str, inner: str) -> None:
    locations = [Location.parse("sources", text) for text in (outer, inner)]
    with pytest.raises(InvalidArgument, match="its folder must not be in the folder of"):
        refuse_overlaps(["one", "two"], locations)
    refuse_overlaps(["one", "two"], [locations[0], Location.parse("sources", f"{outer}-2")])


def test_buckets_of_one_name_may_be_of_two_storages() -> None:
    texts = ["s3://a@b/p", "s3://c@b/p", "s3://{{ params.d }}@b/p"]
    refuse_overlaps(["one", "two", "three"], [Location("folder", text) for text in texts])


def test_white_space_is_cut_off_unless_the_text_is_exact() -> None:
    assert Location.parse("destination", " /data/a ").text == "/data/a"
    assert Location.parse("landing", "/data/a ", is_exact=True).text == "/data/a "


def test_a_manifest_stands_for_its_landing() -> None:
    assert Location.parse_landed("landing", "s3://b/p/_manifest.json").asset_uri == "s3://b/p"
