"""Jobs in this process and on workers: order, errors, and workers that die."""

import errno
import os
from functools import partial

import dask
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from widefield.answer import jobs
from widefield.answer.jobs import Job


@pytest.fixture(scope="module")
def client():
    """One worker, which no task may kill twice."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("elsewhere", [False, True])
def test_results_come_by_name_and_errors_as_they_are(client, elsewhere):
    asked, done = client if elsewhere else None, []
    work = [Job("a", partial(int, "1")), Job("b", partial(int, "2"), ("a",)), Job("c", partial(int, "3"), ("a", "b"))]
    assert jobs.run(work, asked, done.append) == {"a": 1, "b": 2, "c": 3}
    assert done == [1, 1, 1]
    with pytest.raises(ValueError, match="invalid literal"):
        jobs.run([Job("a", partial(int, "x")), Job("b", partial(int, "2"), ("a",))], asked, done.append)
    assert jobs.run(work, asked, done.append)["c"] == 3


def test_threads_of_blas_are_given_back():
    count = lambda: [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]  # noqa: E731
    before = count()
    inside = jobs.run([Job("a", count)], None, lambda n: None)["a"]
    assert set(inside) == {1} and count() == before


def test_a_job_that_kills_its_workers_is_one_error(client):
    with pytest.raises(RuntimeError, match="Workers of `client` die.*goes on"):
        jobs.run(
            [Job("a", partial(exec, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))], client, lambda n: None
        )


def test_a_folder_that_workers_do_not_see_is_told(client):
    with pytest.raises(FileNotFoundError, match="one folder for all machines") as caught:
        jobs.run([Job("a", partial(os.listdir, "/none"))], client, lambda n: None)
    assert caught.value.errno == errno.ENOENT and caught.value.filename == "/none"
