"""Every operation of the API, in the order of its document."""

from __future__ import annotations

from http import HTTPStatus

from autotune.web import promotions, sessions, studies, trials
from autotune.web.asked import (
    CompareQuery,
    DeploymentPath,
    DiffQuery,
    FrontQuery,
    LogQuery,
    StudyPath,
    TrialPath,
    TrialsQuery,
    VersionPath,
)
from autotune.web.route import Route

_ROOT = "/api/v1"
_STUDY = f"{_ROOT}/studies/{{name}}"
_TRIAL = f"{_STUDY}/trials/{{number}}"
_DEPLOYMENT = f"{_ROOT}/promotions/{{name}}"
_NOT_FOUND = (HTTPStatus.NOT_FOUND,)
_NOT_MEASURED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

SESSION_ROUTES = (
    Route(
        method="GET",
        path=f"{_ROOT}/session",
        handler=sessions.get_session,
        summary="Whether the asker is logged in",
        tag="session",
        answer=sessions.SessionDocument,
        open_to_all=True,
    ),
    Route(
        method="POST",
        path=f"{_ROOT}/session",
        handler=sessions.log_in,
        summary="Show the token, and get a cookie",
        tag="session",
        body=sessions.Login,
        status=HTTPStatus.NO_CONTENT,
        open_to_all=True,
    ),
    Route(
        method="DELETE",
        path=f"{_ROOT}/session",
        handler=sessions.log_out,
        summary="End the cookie's session",
        tag="session",
        status=HTTPStatus.NO_CONTENT,
        open_to_all=True,
    ),
)

STUDY_ROUTES = (
    Route(
        method="GET",
        path=f"{_ROOT}/studies",
        handler=studies.list_studies,
        summary="Every study with its progress",
        tag="studies",
    ),
    Route(
        method="GET",
        path=_STUDY,
        handler=studies.get_study,
        summary="A whole study: trials, front, pick",
        tag="studies",
        parameters=StudyPath,
        query=FrontQuery,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/front",
        handler=studies.get_front,
        summary="Front, baseline and pick of a study",
        tag="fronts",
        parameters=StudyPath,
        query=FrontQuery,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/times",
        handler=studies.get_times,
        summary="When each trial was begun and finished",
        tag="studies",
        parameters=StudyPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/explain",
        handler=studies.get_explanation,
        summary="What a study has learnt",
        tag="studies",
        parameters=StudyPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/compare",
        handler=studies.get_comparison,
        summary="Two configs, and whether their differences are more than noise",
        tag="studies",
        query=CompareQuery,
        problems=_NOT_MEASURED,
    ),
)

TRIAL_ROUTES = (
    Route(
        method="GET",
        path=f"{_STUDY}/trials",
        handler=studies.list_trials,
        summary="Trials of a study",
        tag="trials",
        parameters=StudyPath,
        query=TrialsQuery,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=_TRIAL,
        handler=trials.get_trial,
        summary="All the evidence of a trial",
        tag="trials",
        parameters=TrialPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_TRIAL}/measurements",
        handler=trials.list_measurements,
        summary="The load levels of a trial, with every figure",
        tag="measurements",
        parameters=TrialPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_TRIAL}/log",
        handler=trials.get_log,
        summary="A piece of a trial's server log",
        tag="logs",
        parameters=TrialPath,
        query=LogQuery,
        problems=_NOT_FOUND,
    ),
)

PROMOTION_ROUTES = (
    Route(
        method="GET",
        path=f"{_ROOT}/promotions",
        handler=promotions.list_promotions,
        summary="What was promoted, oldest first",
        tag="promotions",
    ),
    Route(
        method="GET",
        path=_DEPLOYMENT,
        handler=promotions.get_deployment,
        summary="The history of a deployment",
        tag="promotions",
        parameters=DeploymentPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_DEPLOYMENT}/diff",
        handler=promotions.get_diff,
        summary="What differs between two versions of a deployment",
        tag="promotions",
        parameters=DeploymentPath,
        query=DiffQuery,
        problems=_NOT_MEASURED,
    ),
    Route(
        method="GET",
        path=f"{_DEPLOYMENT}/{{version}}",
        handler=promotions.get_promotion,
        summary="One promotion: files, gate's record",
        tag="promotions",
        parameters=VersionPath,
        problems=_NOT_FOUND,
    ),
)

ROUTES: tuple[Route, ...] = (*SESSION_ROUTES, *STUDY_ROUTES, *TRIAL_ROUTES, *PROMOTION_ROUTES)
