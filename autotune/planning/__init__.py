"""From a recipe to a plan: node, model, workload, space and rules brought together before anything is launched."""

from autotune.planning.make import DEFAULT_NODE, make_plan
from autotune.planning.plan import RESOLVED_FLAGS, StudyPlan, Surroundings, fixed_plan

__all__ = ["DEFAULT_NODE", "RESOLVED_FLAGS", "StudyPlan", "Surroundings", "fixed_plan", "make_plan"]
