"""A simulated server that holds the GPUs of benchmarks/chaos/driver which it is given, as a real one would."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from autotune.simulator.server import main
from benchmarks.chaos.driver import pynvml

pynvml.hold()
sys.exit(main())
