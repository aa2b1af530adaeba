"""Tests of job deadlines, which one thread checks."""

import threading

from protofl.federation.jobs import recovery as watching
from protofl.federation.jobs.recovery import NAME, Deadlines


class Clock:
    """A clock that advances only when a test sets it."""

    now = 0.0

    def monotonic(self):
        return self.now


class Host:
    def __init__(self):
        self.closed = threading.Event()

    def close(self):
        self.closed.set()


def test_a_late_job_ends_its_host_and_no_other(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    watch, hosts = Deadlines(0.1), [Host() for _ in range(4)]
    with watch.over(hosts[0]) as done:
        clock.now = 0.05
    with watch.over(hosts[1]) as first:
        clock.now = 0.1
        with watch.over(hosts[2]) as second:
            clock.now = 0.16
            assert hosts[1].closed.wait(20)
            assert not hosts[2].closed.is_set()
            clock.now = 0.21
            assert hosts[2].closed.wait(20), "one that began while others were looked after"
    with watch.over(hosts[3]) as later:
        clock.now = 0.32
        assert hosts[3].closed.wait(20), "one that began when nothing was left to look after"
    assert first.rung
    assert second.rung
    assert later.rung
    assert not done.rung
    assert not hosts[0].closed.is_set()
    watch.close()


def looking():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_one_thread_looks_after_all_jobs_and_ends_when_it_is_closed():
    before, watch = looking(), Deadlines(1000)
    for _ in range(50):
        with watch.over(Host()):
            (thread,) = {*looking()} - {*before}
    watch.close()
    thread.join(20)
    assert not thread.is_alive()
