"""Teachers that a real SGLang serves: log-probs of the policy's tokens from its prefill."""

from __future__ import annotations

import asyncio

from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.served_teachers import check_teachers

from agentgym_rl.models.resolve import BUNDLED
from tests.kit.teaching import NOISE, furthest, rows_of, taught


def test_an_sglang_teacher_tells_what_the_frozen_policy_computes(sglang_server):
    url = sglang_server.url
    asyncio.run(check_teachers(TeacherConfig.model_validate({"models": url}), BUNDLED, 200))
    rows = rows_of(2, 17, 64, 65, 200, 200)
    # The second time, all are in the prefix cache.
    assert furthest([*taught(url, rows), *taught(url, rows[::-1])]) < NOISE
