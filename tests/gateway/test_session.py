"""A session: the numbers and names of its requests, and what it counts."""

import pytest

from agentgym_rl.gateway import Session, SessionSampling


@pytest.fixture
def session() -> Session:
    return Session("s-1", sampling=SessionSampling(max_tokens=8, seed=5), turn_timeout_s=1.0)


def test_requests_are_numbered_and_their_names_lead_back(session):
    assert [session.next_request() for _ in range(3)] == [0, 1, 2]
    assert (session.num_requests, session.num_turns) == (3, 0)
    other = Session("s-1", sampling=session.sampling, turn_timeout_s=1.0)
    name = session.request_id(12)
    assert session.number_of(f"chatcmpl-{name}") == session.number_of(name) == 12
    for foreign in (other.request_id(12), name[:-2], f"{name}x", f"{name}{'0' * 14}", "", "12"):
        assert session.number_of(foreign) is None, foreign
    assert session.number_of(f"{name}{'0' * 13}") == 12 * 10**13


def test_each_request_has_a_seed_of_its_own_unless_the_session_has_none(session):
    seeds = [session.sampling.turn_seed(number) for number in range(3)]
    assert len(set(seeds)) == 3
    assert seeds == [session.sampling.turn_seed(number) for number in range(3)]
    assert SessionSampling(max_tokens=8).turn_seed(0) is None


def test_the_first_error_stays_and_overflows_are_counted(session):
    for error in ("first", "second"):
        session.fail(error)
        session.overflow(error)
    found = session.record()
    assert (found.infra_error, found.overflow) == ("first", "first")
    assert found.counters["overflows"] == 2
