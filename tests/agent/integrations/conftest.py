"""What the tests of the trainers share: the agent's ingest double and its check that no hook is left."""

from tests.agent.conftest import ingest, no_hook_is_left

__all__ = ["ingest", "no_hook_is_left"]
