"""Files that are damaged, cut off or foreign are refused at once; disks that fail and processes that are killed leave the
old file or the new one, and nothing beside it."""

import errno
import os
import subprocess
import sys

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


def test_every_flipped_bit_is_seen(tmp_path, content):
    """All positions are equal before a checksum; those at the ends and 300 others are tried."""
    rng = np.random.default_rng(0)
    n_bits = 8 * len(content)
    for bit in {0, 1, n_bits - 1, n_bits - 8, *map(int, rng.integers(n_bits, size=300))}:
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


def sealed(tmp_path, change):
    """A good file, changed by ``change`` and sealed again."""
    path = made(**SMALL).save(tmp_path / "a.nc")
    path.write_bytes(path.read_bytes()[: -files.CHECKSUM_SIZE])
    with h5py.File(path, "r+") as file:
        change(file)
    return write(tmp_path, path.read_bytes(), seal=True)


def test_an_unchanged_file_passes_the_same_way(tmp_path):
    assert wf.load(sealed(tmp_path, lambda file: None)).kernel.shape == (3, 3)


def test_another_format_is_named(tmp_path):
    refused(sealed(tmp_path, lambda file: file.attrs.modify("format", "widefield-999")), "widefield-999")


@pytest.mark.parametrize("attribute", ["network", "certificate", "fields", "format"])
@pytest.mark.parametrize("damage", [None, "", "{", "[1]", '{"depth": 1' + "0" * 30 + "}", "[" * 10**5])
def test_damaged_words_are_refused(tmp_path, attribute, damage):
    def change(file):
        del file.attrs[attribute]
        if damage is not None:
            file.attrs[attribute] = damage[:60_000]

    refused(sealed(tmp_path, change))


def test_arrays_larger_than_the_file_are_not_allocated(tmp_path):
    huge = lambda file: file["solution"].create_dataset("huge", (10**7, 10**6), "f8", chunks=(100, 100))  # noqa: E731
    refused(sealed(tmp_path, huge), "larger than the file")


def test_links_out_of_the_file_are_not_followed(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(8000))
    outside = ((str(tmp_path / "secret.bin"), 0, 8000),)
    refused(sealed(tmp_path, lambda file: file.__setitem__("other", h5py.ExternalLink("a.nc", "/"))), "links")
    refused(sealed(tmp_path, lambda file: file["solution"].__setitem__("x", h5py.SoftLink("/task"))), "links")
    away = lambda file: file["solution"].create_dataset("x", (1000,), "f8", external=outside)  # noqa: E731
    refused(sealed(tmp_path, away), "other files")


def test_a_file_runs_no_code(tmp_path):
    """What a file says is source text stays text, and objects of other kinds are refused."""
    mark = tmp_path / "ran"
    network = {"name": "own", "parameters": [], "breaks": [], "source": f"open({str(mark)!r}, 'w')"}

    def change(file):
        stated = files.json.loads(file.attrs["network"]) | {"activation": network}
        file.attrs["network"] = files.json.dumps(stated)

    solution = wf.load(sealed(tmp_path, change))
    assert "open(" in solution.network.activation.source
    with pytest.raises(ValueError, match="cannot be evaluated"):
        wf.prior(solution.network, solution.task)
    assert not mark.exists()


# Disks that fail, and processes that are killed.


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_at_any_write_spoils_nothing(tmp_path, monkeypatch, existing, code):
    path, solution = tmp_path / "a.nc", made(**SMALL)
    monkeypatch.setattr(files, "PART", 2000)
    before = solution.save(path).read_bytes()
    n_writes = -(-len(before) // 2000) + 1
    real, written = os.write, []

    def failing(after):
        def write(descriptor, part):
            written.append(len(part))
            if len(written) > after:
                raise OSError(code, os.strerror(code))
            return real(descriptor, part[: len(part) // 2 + 1])  # a disk may take less than it was given

        return write

    for after in range(n_writes):
        if not existing:
            path.unlink(missing_ok=True)
        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(after))
            with pytest.raises(OSError, match=os.strerror(code)):
                solution.save(path)
        assert os.listdir(tmp_path) == (["a.nc"] if existing else [])
        assert not existing or path.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_save_that_ends_early_spoils_nothing(tmp_path, monkeypatch, step, error):
    path = tmp_path / "a.nc"
    path.write_bytes(b"precious")

    def fail(*args):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        made().save(path)
    assert os.listdir(tmp_path) == ["a.nc"] and path.read_bytes() == b"precious"


FATES = """
import os, resource, signal, sys, time
import numpy as np
import widefield as wf

path, rng, left = sys.argv[1], np.random.default_rng(0), 0
folder, solution = os.path.dirname(path), wf.load(path)
for _ in range(20):
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
def test_killed_processes_and_full_disks_cost_nothing(tmp_path):
    """Twenty processes that do nothing but save are killed: the file is whole, and the next save cleans up. Then the disk
    is full, which is a limit on the size of files here: saving fails, whatever code writes, and the interpreter lives on."""
    path = made(**SMALL).save(tmp_path / "a.nc")
    before = path.read_bytes()
    ended = subprocess.run([sys.executable, "-c", FATES, path], capture_output=True, text=True, timeout=300)
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
