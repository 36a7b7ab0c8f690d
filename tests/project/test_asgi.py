"""The ASGI application of the example project."""

import subprocess
import sys

from tests.support.installation import ROOT

IMPORTED = 50_000  # objects; Django and REST framework alone have more


def test_the_garbage_collector_does_not_look_at_what_the_web_process_has_imported() -> None:
    """With all of it, a full collection takes 0.1 s, in which the process answers nobody."""
    code = "import gc, project.asgi, sys; print(gc.get_freeze_count(), 'delaytasks.api.views.jobs' in sys.modules)"
    env = {"SECRET_KEY": "of a test", "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "project.settings"}
    printed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    frozen, has_views = printed.split()
    assert int(frozen) > IMPORTED
    assert has_views == "True"
