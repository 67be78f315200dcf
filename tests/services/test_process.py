"""What a serving process asks of Python."""

import sys

from adjudge_services.process import switch_threads_often


def test_threads_that_compute_give_way_sooner_than_pythons_own() -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        switch_threads_often()
        assert sys.getswitchinterval() < 0.005
    finally:
        sys.setswitchinterval(usual)
