"""Files that are damaged, cut off or foreign are refused at once; disks that fail and processes that are killed leave the
old file or the new one, and nothing beside it."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import h5netcdf
import h5py
import numpy as np
import pytest
import xarray as xr

import widefield as wf
from tests.answer.test_solution import made
from widefield.answer import files

SMALL = {"arrays": {"kernel": (("sample", "sample_"), np.arange(9.0).reshape(3, 3))}, "task": wf.Task(np.eye(3))}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a small file."""
    return made(**SMALL).save(tmp_path_factory.mktemp("small") / "a.nc").read_bytes()


def write(folder, content, *, seal=False):
    path = folder / "b.nc"
    path.write_bytes(content + files.checksum(content) if seal else content)
    return path


def refused(path, *words):
    with pytest.raises(ValueError, match=r"(?s)`path`.*b\.nc") as raised:
        wf.load(path)
    assert all(word in str(raised.value) for word in words), raised.value


# Damage.


@pytest.mark.parametrize("n_flips", [300, pytest.param(3000, marks=pytest.mark.full)])
def test_every_flipped_bit_is_seen(tmp_path, content, n_flips):
    """All positions are equal before a checksum; those at the ends and others are tried."""
    rng = np.random.default_rng(0)
    n_bits = 8 * len(content)
    for bit in {0, 1, n_bits - 1, n_bits - 8, *map(int, rng.integers(n_bits, size=n_flips))}:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(write(tmp_path, flipped), "damaged")


def test_every_bit_of_the_checksum_counts(tmp_path, content):
    for bit in range(8 * (len(content) - files.CHECKSUM_SIZE), 8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(write(tmp_path, flipped))


def test_files_that_are_cut_off_or_longer(tmp_path, content):
    sizes = {0, 1, files.CHECKSUM_SIZE, len(content) - files.CHECKSUM_SIZE, len(content) - 1}
    for size in sizes | set(range(2, len(content), 97)):
        refused(write(tmp_path, content[:size]), "cut off")
    refused(write(tmp_path, content + b"\n"), "cut off")
    refused(write(tmp_path, content[: len(content) // 2] + bytes(len(content) - len(content) // 2)))
    refused(write(tmp_path, content + content), "other bytes than were written")


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x89HDF\r\n\x1a\n", b"CDF\x01" + bytes(400), bytes(10**6)])
def test_other_files_are_refused(tmp_path, junk):
    refused(write(tmp_path, junk), "not a file written by Solution.save")
    refused(write(tmp_path, junk, seal=True), "no widefield file")


def test_missing_files_are_named(tmp_path):
    for path in (tmp_path / "none.nc", tmp_path):
        with pytest.raises(ValueError, match="`path` must be a file written by Solution.save"):
            wf.load(path)
    for path in (None, 3, b"a.nc" and 1.5):
        with pytest.raises(ValueError, match="`path` must be the name of a file"):
            wf.load(path)


def test_other_readers_open_the_file(tmp_path):
    """It is NetCDF and HDF5 to everybody else."""
    solution = made()
    path = solution.save(tmp_path / "a.nc")
    with xr.open_dataset(path, group="solution") as data:
        np.testing.assert_array_equal(data.kernel, solution.kernel)
    with h5py.File(path) as file, h5netcdf.File(path) as same:
        np.testing.assert_array_equal(file["solution/kernel"], solution.kernel)
        np.testing.assert_array_equal(same["solution/kernel"][...], solution.kernel)
        assert file.attrs["format"] == files.FORMAT


# Files from elsewhere, with a checksum that is right.


END = files.CHECKSUM_SIZE + files.LENGTH_SIZE


def parts(content):
    """The bytes that are NetCDF, and the index."""
    length = int.from_bytes(content[-END : -files.CHECKSUM_SIZE], "little")
    return content[: -END - length], content[-END - length : -END]


def crafted(tmp_path, netcdf, index):
    """A file with another index, sealed again."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return write(tmp_path, netcdf + text + len(text).to_bytes(files.LENGTH_SIZE, "little"), seal=True)


@pytest.fixture
def index(content):
    return json.loads(parts(content)[1])


def test_an_unchanged_file_passes_the_same_way(tmp_path, content, index):
    np.testing.assert_array_equal(
        wf.load(crafted(tmp_path, parts(content)[0], index)).kernel, SMALL["arrays"]["kernel"][1]
    )


def test_another_format_is_named(tmp_path, content, index):
    refused(crafted(tmp_path, parts(content)[0], index | {"format": "widefield-999"}), "widefield-999")


@pytest.mark.parametrize("name", ["network", "certificate", "groups", "format"])
@pytest.mark.parametrize("damage", [None, "", "{", [1], {}, {"depth": 10**30}])
def test_damaged_words_are_refused(tmp_path, content, index, name, damage):
    refused(crafted(tmp_path, parts(content)[0], index | {name: damage}))
    del index[name]
    refused(crafted(tmp_path, parts(content)[0], index))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 10**6, b"1" * 10**6, b'"\\ud800"', b"\xff\xfe", b"null", b"NaN"])
def test_an_index_that_is_none_is_refused(tmp_path, content, text):
    refused(crafted(tmp_path, parts(content)[0], text))


@pytest.mark.parametrize("length", [0, 1, 10**6, 2**64 - 1])
def test_an_index_of_another_length_is_refused(tmp_path, content, length):
    without = b"".join(parts(content))
    refused(write(tmp_path, without + length.to_bytes(files.LENGTH_SIZE, "little"), seal=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [10**7, 10**6]}, {"shape": [10**30]}, {"shape": [-3, -3]}, {"shape": [3]}, {"shape": 9}, {"shape": None},
        {"offset": 10**9}, {"offset": -1}, {"offset": 2**70}, {"offset": "0"}, {"offset": None},
        {"dtype": "O"}, {"dtype": "<U1000000000"}, {"dtype": "(1000000,)f8"}, {"dtype": "V8"}, {"dtype": "M8[s]"},
        {"dtype": "<U2"}, {"dtype": [["a", "O"]]}, {"dtype": "no"},
        {"dims": ["sample"]}, {"dims": [[], 1]}, {"dims": None}, {"field": 3, "dims": 4},
    ],
)  # fmt: skip
def test_arrays_that_are_not_in_the_file_are_refused(tmp_path, content, index, wrong):
    """Larger than the file, behind its end, of objects, or of another shape than is stated elsewhere: nothing is allocated."""
    index["groups"]["solution"]["arrays"]["kernel"] |= wrong
    path = crafted(tmp_path, parts(content)[0], index)
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of xarray, about names of dimensions
        refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e7, "modules are imported, and the trace of the error"


def test_damaged_hdf5_is_never_read(tmp_path, content, index):
    """What stands between the arrays may be anything: only the index says where they are."""
    place = index["groups"]["solution"]["arrays"]["kernel"]
    netcdf = bytearray(b"\xa5" * len(parts(content)[0]))
    netcdf[place["offset"] : place["offset"] + 72] = np.arange(9.0)[::-1].tobytes()
    index["groups"].pop("task")
    read = wf.load(crafted(tmp_path, bytes(netcdf), index))
    np.testing.assert_array_equal(read.kernel, np.arange(9.0)[::-1].reshape(3, 3))


def mutated(rng, content):
    """A file somewhat changed, with a checksum that is right: bytes, words of the index or its structure."""
    body = bytearray(content[: -files.CHECKSUM_SIZE])
    netcdf, text = parts(content)
    kind = rng.integers(4)
    if kind == 0:  # anywhere
        for place in rng.integers(len(body), size=rng.integers(1, 30)):
            body[place] = rng.integers(256)
    elif kind == 1:  # in the index
        for place in len(netcdf) + rng.integers(len(text), size=rng.integers(1, 4)):
            body[place] = rng.choice(list(b'0123456789-[]{},:"eEtfn'))
    elif kind == 2:  # a piece goes to another place
        start, to, size = rng.integers(len(body), size=3)
        body[to : to + size // 20] = body[start : start + size // 20]
    else:  # cut out
        start = rng.integers(len(body))
        del body[start : start + rng.integers(1, 200)]
    return bytes(body) + files.checksum(body)


@pytest.mark.parametrize("n_files", [200, pytest.param(5000, marks=pytest.mark.full)])
def test_crafted_files_load_or_are_refused(tmp_path, content, n_files):
    """Right checksums, wrong content: what loads has the shapes that the file can hold, everything else is a ValueError."""
    rng, n_refused = np.random.default_rng(n_files), 0
    for _ in range(n_files):
        path = write(tmp_path, mutated(rng, content))
        began = time.process_time()
        try:
            assert wf.load(path).data.nbytes <= path.stat().st_size
        except ValueError as error:
            assert "`path`" in str(error)
            n_refused += 1
        assert time.process_time() - began < 2
    assert 0.2 * n_files < n_refused < n_files


def test_a_file_runs_no_code(tmp_path, content, index):
    """What a file says is source text stays text."""
    mark = tmp_path / "ran"
    own = {"name": "own", "parameters": [], "breaks": [], "source": f"open({str(mark)!r}, 'w')"}
    index["network"]["activation"] = own
    solution = wf.load(crafted(tmp_path, parts(content)[0], index))
    assert "open(" in solution.network.activation.source
    with pytest.raises(ValueError, match="cannot be evaluated"):
        wf.prior(solution.network, solution.task)
    assert not mark.exists()


# Disks that fail, and processes that are killed.


class Faults:
    """Calls to the system counted; one of them fails, ``code`` being its error."""

    def __init__(self, patch, code, failing):
        self.code, self.failing, self.made = code, failing, []
        for module, name in ((os, "write"), (os, "fsync"), (os, "replace"), (files, "open")):
            patch.setattr(module, name, self.counted(name, getattr(module, name, open)), raising=False)

    def counted(self, name, real):
        def call(*args, **kwargs):
            if name != "open" and threading.current_thread() is not threading.main_thread():
                return real(*args, **kwargs)
            self.made.append(name)
            if len(self.made) - 1 == self.failing:
                raise OSError(self.code, os.strerror(self.code))
            if name == "write":
                args = (args[0], args[1][: len(args[1]) // 2 + 1])  # a disk may take less than it was given
            opened = real(*args, **kwargs)
            return Reading(opened, self) if name == "open" and args[1] == "rb" else opened

        return call


class Reading(io.BufferedReader):
    """A file of which one read or seek fails."""

    def __init__(self, file, faults):
        super().__init__(file.detach())
        self.faults = faults
        for name in ("read", "readinto", "seek"):
            setattr(self, name, faults.counted(name, getattr(super(), name)))


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_at_any_call_of_a_save_spoils_nothing(tmp_path, monkeypatch, existing, code):
    path, solution = tmp_path / "a.nc", made(**SMALL)
    monkeypatch.setattr(files, "PART", 2000)
    before = solution.save(path).read_bytes()
    calls = []
    for failing in range(1000):
        if not existing:
            path.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            faults = Faults(patch, code, failing)
            try:
                solution.save(path)
            except OSError as error:
                assert error.errno == code
            else:
                break
        calls.append(faults.made[-1])
        assert os.listdir(tmp_path) == (["a.nc"] if existing else []), calls
        assert not existing or path.read_bytes() == before
    assert set(calls) == {"open", "write", "fsync", "replace"} and calls.count("write") >= len(before) // 2000
    assert wf.load(path).data.identical(solution.data)


def test_a_disk_that_fails_while_it_is_read_is_no_other_number(tmp_path, monkeypatch, content):
    path, calls = write(tmp_path, content), []
    monkeypatch.setattr(files, "PART", 2000)
    for failing in range(1000):
        with monkeypatch.context() as patch:
            faults = Faults(patch, errno.EIO, failing)
            try:
                read = wf.load(path)
            except OSError as error:
                assert error.errno == errno.EIO
            else:
                break
        calls.append(faults.made[-1])
    assert set(calls) == {"open", "read", "readinto", "seek"} and calls.count("read") > len(content) // 2000
    np.testing.assert_array_equal(read.kernel, SMALL["arrays"]["kernel"][1])


FATES = """
import os, resource, signal, sys, time
import numpy as np
import widefield as wf

path, rng, left = sys.argv[1], np.random.default_rng(0), 0
folder, solution = os.path.dirname(path), wf.load(path)
for _ in range(int(sys.argv[2])):
    child = os.fork()
    while child == 0:
        solution.save(path)
    while os.listdir(folder) == ["a.nc"]:
        pass
    time.sleep(0.003 * rng.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert wf.load(path).data.identical(solution.data)
    left += os.listdir(folder) != ["a.nc"]
    solution.save(path)
    assert os.listdir(folder) == ["a.nc"], os.listdir(folder)
print("left behind", left, flush=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 1000, 4096, 6000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        solution.save(path)
    except OSError as error:
        print("refused", error.errno)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, and limited")
@pytest.mark.parametrize("n_kills", [20, pytest.param(200, marks=pytest.mark.full)])
def test_killed_processes_and_full_disks_cost_nothing(tmp_path, n_kills):
    """Processes that do nothing but save are killed: the file is whole, and the next save cleans up. Then the disk
    is full, which is a limit on the size of files here: saving fails, whatever code writes, and the interpreter lives on."""
    path = made(**SMALL).save(tmp_path / "a.nc")
    before = path.read_bytes()
    ended = subprocess.run(
        [sys.executable, "-c", FATES, path, str(n_kills)], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    n_left, *errors = (int(line.split()[-1]) for line in ended.stdout.splitlines())
    assert n_left > 0, "no kill came in the middle of a save"
    assert errors == [errno.EFBIG] * 4
    assert os.listdir(tmp_path) == ["a.nc"] and path.read_bytes() == before


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    file, scratch = files._scratch(tmp_path)
    with file:
        made(**SMALL).save(tmp_path / "a.nc")
        assert scratch.exists(), "locked by its writer"
    (tmp_path / ".other.part").write_text("not ours")
    made(**SMALL).save(tmp_path / "a.nc")
    assert sorted(os.listdir(tmp_path)) == [".other.part", "a.nc"]


def test_bad_places(tmp_path):
    (tmp_path / "folder").mkdir()
    for path, words in ((tmp_path / "nowhere" / "a.nc", "existing folder"), (tmp_path / "folder", "is a folder")):
        with pytest.raises(ValueError, match=f"`path` must.*{words}"):
            made().save(path)
    for path in (None, 3, ["a.nc"]):
        with pytest.raises(ValueError, match="`path` must be the name of a file"):
            made().save(path)
    assert os.listdir(tmp_path) == ["folder"]


def test_long_names_are_names(tmp_path):
    path = tmp_path / ("n" * 250 + ".nc")
    assert wf.load(made().save(path)).certificate.theory == "demo"
