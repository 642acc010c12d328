"""The initial contents of every sandbox: one account, its credentials, a team, tasks, groups and data apps.

The credentials are valid only in a sandbox.
"""

from __future__ import annotations

USERNAME = "demo"
PASSWORD = "sandbox-password"
ACCESS_TOKEN = "sandbox-access-token"
REFRESH_TOKEN = "sandbox-refresh-token"
API_KEY = "op_sk_sandbox0000000000000000"
DATAHUB_API_KEY = "dh_sk_sandbox-author"
#: A valid key, whose owner is the author of ``OTHERS_APP_ID`` only.
OTHER_DATAHUB_API_KEY = "dh_sk_sandbox-somebody-else"

#: A member of the team of ``USERNAME``, who cannot see her tasks but may name her in analytics queries.
COLLEAGUE = "alice"
#: A user outside the team, whom analytics queries may not name.
STRANGER = "mallory"

#: A task that has never run, with five loop items and, by default, four sub-tasks.
TASK_ID = "5a9d0b0e-0000-4000-8000-000000000001"
#: A task that has run twice: it has the batches ``000001`` and ``000002``, with 120 rows each.
FINISHED_TASK_ID = "5a9d0b0e-0000-4000-8000-000000000002"
#: A task in group 2 that has never run.
GROUPED_TASK_ID = "5a9d0b0e-0000-4000-8000-000000000003"
COLLEAGUES_TASK_ID = "5a9d0b0e-0000-4000-8000-00000000000a"
STRANGERS_TASK_ID = "5a9d0b0e-0000-4000-8000-00000000000b"

LOOP_ITEMS = ("laptop", "coffee", "headphones", "自行车", "rucksack")

DEFAULT_GROUP_ID = 1
GROUPS = {1: "My tasks", 2: "Shops", 3: "News"}

#: The slash separates namespace and name; a client that sends the id as one segment percent-encodes it.
APP_ID = "demo/price-watch"
UNRELEASED_APP_ID = "demo-unreleased"
OTHERS_APP_ID = "other-app"
