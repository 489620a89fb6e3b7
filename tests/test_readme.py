"""What the README shows runs, and says what is true."""

import re
import subprocess
import sys
from pathlib import Path

import scaledot
from scaledot import statistics

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["weights"].shape == (8, 128, 128)
    assert names["seen"].entropy.shape == (8, 128)


def test_the_table_names_every_function():
    calls = set(re.findall(r"^\| `(\w+)\(", README, flags=re.M))
    assert calls == {name for name in scaledot.__all__ if name.islower() and name[0] != "_"}


def test_the_exercise_is_as_it_prints():
    script = Path(__file__).parent.parent / "examples" / "exercise.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert f"```\n{done.stdout}```" in README


def test_fourteen_statistics():
    assert len(statistics.NAMES) == 14
