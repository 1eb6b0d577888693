"""Saved runs that others made: bounded in size, depth and time, and refused by name.

The checksums of all of them are right, as whoever changes a file on purpose sees to that.
"""

from __future__ import annotations

import json
import os
import tracemalloc

import h5py
import numpy as np
import pytest

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs.atomic_files import SEAL, DamagedFileError, read_whole, write_whole
from tests.helpers.saved_files import edited
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import driver

SETTINGS = {"e_step": Noisy(), "progressbar": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, family):
    """The bytes of a saved run of each driver, in which every group is there."""
    folder = tmp_path_factory.mktemp("whole")
    stream = list(mixture_stream(np.random.default_rng(1), 31))
    stream[20] = np.inf
    em = driver(
        family,
        n_start=10,
        batch_size=4,
        average_from=12,
        on_error="skip",
        e_step=Noisy(troubled=True),
        revival=Revival(),
    )
    em.partial_fit(stream).save(folder / "online.nc")
    del stream[20]
    saem = SAEM(family, draws=5, batch_size=0.5, random_seed=1, **SETTINGS)
    saem.fit(stream, 3).save(folder / "saem.nc")
    return {name: (folder / f"{name}.nc").read_bytes() for name in ("online", "saem")}


def load(kind, path, **overrides):
    if kind == "online":
        return OnlineEM.load(path, NormalMixture(), **(SETTINGS | overrides))
    return SAEM.load(path, NormalMixture(), **(SETTINGS | overrides))


def circle(file):
    file["run/again"] = file["/"]


def two_names(file):
    file["run/again"] = file["run/float64"]


def nested(file):
    group = file
    for _ in range(1500):
        group = group.create_group("g")


def declared(file):
    file.create_dataset("run/large", (200_000_000,), np.float64)


def growing(file):
    large = file.create_dataset("steps/large", (3,), "f8", maxshape=(None,), chunks=(9,))
    large.resize(200_000_000, axis=0)


def compressed(file):
    file["run"].create_dataset(
        "large", data=np.zeros(20_000_000), compression="gzip", chunks=(1_000_000,)
    )


def long_text(file):
    file["run"].create_dataset("large", (1,), "S2000000000")


def many_words(file):
    file["run"].attrs["many"] = ["x"] * 40


def records(file):
    kind = np.dtype([("a", "f8", (1000,)), ("b", h5py.ref_dtype)])
    file.create_dataset("run/large", (2,), kind)


def named_type(file):
    file["run/kind"] = np.dtype("f8")


BOMBS = {
    circle: r"'/run/again' has two names",
    two_names: r"'/run/\w+' has two names",
    nested: r"'/g/g/g' is nested too deeply",
    declared: "'/run/large' declares more than the whole file holds",
    growing: "'/steps/large' is kept in pieces, compressed, or without an end",
    compressed: "'/run/large' is kept in pieces, compressed, or without an end",
    long_text: "'/run/large' declares more than the whole file holds",
    many_words: "'many of /run' has too many values for an attribute",
    records: "'/run/large' has a type that no array of a run has",
    named_type: "'/run/kind' is neither a group nor an array",
}


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_what_asks_for_much_is_refused_by_name(whole, tmp_path, bomb):
    path = tmp_path / "run.nc"
    path.write_bytes(whole["online"])
    with edited(path) as file:
        bomb(file)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match=rf"run\.nc' is damaged: {BOMBS[bomb]}"):
            load("online", path)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


def test_one_long_text_under_many_names_is_refused(whole, tmp_path):
    """A text's place in the file is 16 bytes: as many as one likes may lead to one text."""
    path, n = tmp_path / "run.nc", 2001
    path.write_bytes(whole["online"])
    words = ["x" * 50_000] + ["y"] * (n - 1)
    with edited(path) as file:
        many = file["skipped"].create_dataset("many", data=words, dtype=h5py.string_dtype())
        first = many.id.get_offset()
    content = bytearray(read_whole(path))
    content[first : first + 16 * n] = bytes(content[first : first + 16]) * n
    write_whole(path, bytes(content))
    with pytest.raises(DamagedFileError, match="'/skipped/many' declares more than the whole file"):
        load("online", path)


def test_a_file_larger_than_memory_is_not_read(tmp_path):
    path = tmp_path / "run.nc"
    with path.open("wb") as file:
        try:
            file.truncate(1 << 42)
        except OSError:
            pytest.skip("this file system has no files with holes of such a size")
        file.seek(0, os.SEEK_END)
        file.write(SEAL + b"0" * 64)
    with pytest.raises(DamagedFileError, match=r"run\.nc' has 4,398,.* more than this machine has"):
        load("online", path)


@pytest.mark.parametrize("kind", ["raw", "virtual", "soft link", "external link"])
def test_a_file_that_leads_elsewhere_is_refused(whole, tmp_path, kind):
    path, elsewhere = tmp_path / "run.nc", tmp_path / "elsewhere"
    path.write_bytes(whole["online"])
    with edited(path) as file:
        name = "run/float64"
        values = np.array(file[name])
        del file[name]
        if kind == "raw":
            elsewhere.write_bytes(values.tobytes())
            places = [(str(elsewhere), 0, values.nbytes)]
            file.create_dataset(name, values.shape, values.dtype, external=places)
        elif kind == "virtual":
            with h5py.File(elsewhere, "w") as other:
                other["values"] = values
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[...] = h5py.VirtualSource(str(elsewhere), "values", values.shape)
            file.create_virtual_dataset(name, layout)
        elif kind == "soft link":
            file[name] = h5py.SoftLink("/steps")
        else:
            file[name] = h5py.ExternalLink(str(elsewhere), "values")
    with pytest.raises(DamagedFileError, match=r"damaged: '/run/float64' is stored elsewhere"):
        load("online", path)


def changed_settings(path, change):
    with edited(path) as file:
        settings = json.loads(file.attrs["settings"])
        change(settings)
        file.attrs["settings"] = json.dumps(settings)


@pytest.mark.parametrize("kind", ["online", "saem"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"executor": 1000}, "is damaged: its settings are .*'executor'"),
        ({"progressbar": False}, "is damaged: its settings are .*'progressbar'"),
        ({"n_start": -1}, "is damaged: n_start: got -1"),
        ({"step_size": {"array": ["a"], "dtype": "S2000000000"}}, "is damaged: .*S2000000000"),
        ({"step_size": {"array": [[[]]] * 9, "dtype": "f8"}}, "is damaged: .*step_size"),
        ({"step_size": {"array": [1], "dtype": "O"}}, r"is damaged: .*'\|O'"),
        (
            {"step_size": {"class": "pymc_mcoem.schedules:StepSize", "fields": {"exponent": -1}}},
            "is damaged",
        ),
        ({"step_size": {}}, "is damaged"),
    ],
)
def test_settings_that_no_run_has_are_refused(whole, tmp_path, kind, change, message):
    path = tmp_path / "run.nc"
    path.write_bytes(whole[kind])
    changed_settings(path, lambda settings: settings.update(change))
    with pytest.raises(DamagedFileError, match=rf"run\.nc' {message}"):
        load(kind, path)


def test_what_is_given_beside_a_file_is_not_the_files_fault(whole, tmp_path):
    path = tmp_path / "run.nc"
    path.write_bytes(whole["online"])
    with pytest.raises(ValueError, match=r"^n_start: got -1") as refusal:
        load("online", path, n_start=-1)
    assert not isinstance(refusal.value, DamagedFileError)


@pytest.mark.parametrize("kind", ["online", "saem"])
def test_numbers_that_are_not_finite_are_the_files_fault(whole, tmp_path, kind):
    path = tmp_path / "run.nc"
    path.write_bytes(whole[kind])
    with edited(path) as file:
        file["run/float64"][...] = np.nan
    with pytest.raises(DamagedFileError, match=r"run\.nc' is damaged: .*not finite"):
        load(kind, path)


def arrays_in(content):
    found = []
    with h5py.File(h5py.h5f.open_file_image(content)) as file:
        file.visititems(
            lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None
        )
        return found, dict(file.attrs)


def replaced(file, name, values):
    dims = file[name].attrs.get("DIMENSION_LIST") is not None
    scales = [scale[0].name for scale in file[name].dims] if dims and values.ndim else []
    del file[name]
    file[name] = values
    for axis, scale in enumerate(scales[: values.ndim]):
        if scale != f"/{name}" and file[scale].shape[0] == values.shape[axis]:
            file[name].dims[axis].attach_scale(file[scale])


def spoil_array(file, name, how):
    item = file[name]
    if how == "gone":
        del file[name]
    elif how == "text":
        replaced(file, name, np.full(item.shape, b"x"))
    elif how == "half":
        replaced(file, name, np.array(item)[: len(item) // 2] if item.ndim else np.zeros(2))
    elif how == "deeper":
        replaced(file, name, np.array(item)[..., None])
    elif item.dtype.kind in "iu":
        item[...] = {"low": -7, "high": 2**31 - 1, "nan": 0}[how]
    elif item.dtype.kind == "f":
        item[...] = {"low": -7.5, "high": 1e6, "nan": np.nan}[how]


def spoil_text(file, name, words):
    if words is None:
        del file.attrs[name]
    else:
        file.attrs[name] = words


def spoil_part(file, name, key, value):
    parts = json.loads(file.attrs[name])
    parts[key] = value
    file.attrs[name] = json.dumps(parts)


def spoil_state(file, name, place, value):
    """Put a value somewhere into the text that holds a run's state without its arrays."""
    held = file[name]
    parts = at = json.loads(held[()].tobytes())
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    text = json.dumps(parts, separators=(",", ":")).encode()
    held[...] = np.frombuffer(text.ljust(held.size), np.uint8)


def places_in(value, place=()):
    """Yield the places of all parts of lists and mappings, by their keys."""
    if place:
        yield place
    parts = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else parts:
        yield from places_in(part, (*place, key))


WORDS = (None, "", "null", "3", "[]", "{}", "x", '{"a": 1}', "[" * 100_000, 7, np.arange(3.0))
#: Where a file has the state, and arrays of it: two numbers, others than are meant, and none.
STATE = "run/structure"
ARRAYS = [{"array": "float64", "at": at} for at in ([0, 2], [-3, 2], [0, -1], [10**9, 3])]
VALUES = (None, -1, 0, "x", 1e300, [], {}, True, 10**30)
HOWS = ("gone", "text", "half", "deeper", "low", "high", "nan")


def spoilings(content):
    """Yield ways to spoil each part of a file in turn."""
    arrays, attributes = arrays_in(content)
    for name in arrays:
        for how in HOWS:
            yield (spoil_array, name, how)
    for name in {group for array in arrays for group in (array.rpartition("/")[0],) if group}:
        yield (spoil_array, name, "gone")
    for name, held in attributes.items():
        for words in WORDS:
            yield (spoil_text, name, words)
        if name == "settings":
            keys = json.loads(held)
            for key in keys if isinstance(keys, dict) else range(len(keys)):
                for value in VALUES:
                    yield (spoil_part, name, key, value)


def spoilings_of_state(content):
    """Yield ways to spoil each part of a run's state in turn."""
    with h5py.File(h5py.h5f.open_file_image(content)) as file:
        parts = json.loads(file[STATE][()].tobytes())
    for place in places_in(parts):
        for value in (*VALUES, *ARRAYS):
            # a family of its own alone can tell that a variance of zero is none
            if place[-1] != "noise_variance" or value != 0:
                yield (spoil_state, STATE, place, value)


def spoilt_is_refused_or_goes_on(kind, content, path, spoiling):
    """Whatever is wrong is one class of error that names the file; what is loaded works."""
    spoil, *arguments = spoiling
    name = arguments[0]
    path.write_bytes(content)
    try:
        with edited(path) as file:
            spoil(file, *arguments)
    except (TypeError, ValueError, OSError, KeyError, OverflowError):
        return "not made"
    try:
        # what a file does is blamed on no record
        run = load(kind, path, on_error="raise")
    except ValueError as error:
        # the family and what a file cannot hold have words of their own, that name the file as well
        assert isinstance(error, DamagedFileError) or "of another family" in str(error), error
        assert "run.nc" in str(error)
        return "refused"
    if kind == "online":
        run.partial_fit([0.3, -1.0, 2.0, 0.1, 0.2])
    else:
        stream = np.delete(mixture_stream(np.random.default_rng(1), 31), 20)
        try:
            run.fit(stream, 1)
        except (ValueError, RuntimeError, FloatingPointError) as error:
            # fingerprints of other observations; what only an E-step, or a sum, knows to be wrong
            assert (
                "are not the" in str(error)
                or "parameters: " in str(error)
                or (
                    "failed in iteration" in str(error)
                    and ("chains" in str(arguments[:2]) or name == "settings")
                )
            )
            return "refused"
    assert run.history and run.parameters
    run.save(path)
    load(kind, path)
    return "loaded"


@pytest.mark.parametrize("kind", ["online", "saem"])
@pytest.mark.parametrize("some", [12, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ways", [spoilings, spoilings_of_state])
def test_spoilt_contents_give_one_class_of_error_or_a_run_that_works(
    whole, tmp_path, rng, kind, some, ways
):
    every = list(ways(whole[kind]))
    chosen = every if some is None else [every[i] for i in rng.choice(len(every), some, False)]
    found, wrong = [], []
    for spoiling in chosen:
        try:
            found.append(
                spoilt_is_refused_or_goes_on(kind, whole[kind], tmp_path / "run.nc", spoiling)
            )
        except Exception as error:
            words = f"{spoiling[0].__name__}{str(spoiling[1:])[:200]}: {error!r}"
            wrong.append(words[:400])
    assert not wrong, "\n".join(wrong)
    assert found.count("refused") > len(chosen) / 3
    assert found.count("not made") < len(chosen) / 10
