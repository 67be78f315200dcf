"""The contract of every engine, tested on vLLM with a real model."""

import pytest

from tests.judge_server.engines import test_contract as contract

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})
