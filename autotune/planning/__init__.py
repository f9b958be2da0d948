"""From a recipe to a plan: node, model, workload, space and rules brought together before anything is launched."""

from autotune.planning.effective import RESOLVED_FLAGS, Effective
from autotune.planning.make import DEFAULT_NODE, make_plan
from autotune.planning.plan import StudyPlan, Surroundings, fixed_plan

__all__ = ["DEFAULT_NODE", "RESOLVED_FLAGS", "Effective", "StudyPlan", "Surroundings", "fixed_plan", "make_plan"]
