"""Runs an example of the guide, from standard input, with a model that says what it is told to."""

import sys

from agents import set_tracing_disabled
from agents.models.multi_provider import MultiProvider
from openai_agents import ScriptedModel, call, say

MODEL = ScriptedModel(call("exec_command", cmd="xargs -n1 < numbers.txt | sort -n | xargs"), say("sorted"))


if __name__ == "__main__":
    set_tracing_disabled(True)
    MultiProvider.get_model = lambda self, name: MODEL
    exec(compile(sys.stdin.read(), "guide", "exec"), {"__name__": "guide"})
    for result in MODEL.results() if MODEL.seen else []:
        print(result)
