"""Every operation of the API, in the order of its document."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus

from aiohttp import web

from autotune import __version__
from autotune.web import (
    events,
    jobs,
    metrics,
    nodes,
    promotions,
    service_documents,
    sessions,
    studies,
    study_documents,
    trial_documents,
    trials,
    wanted,
)
from autotune.web.asked import (
    CompareQuery,
    DeploymentPath,
    DiffQuery,
    EventsQuery,
    FrontQuery,
    JobPath,
    LogQuery,
    NodePath,
    PagePath,
    PageQuery,
    StudyPath,
    TrialPath,
    TrialsQuery,
    VersionPath,
)
from autotune.web.document import Anything
from autotune.web.openapi import openapi_document
from autotune.web.route import Answer, Call, Route, dumped
from autotune.web.service import Service

_ROOT = "/api/v1"
_STUDY = f"{_ROOT}/studies/{{name}}"
_TRIAL = f"{_STUDY}/trials/{{number}}"
_DEPLOYMENT = f"{_ROOT}/promotions/{{name}}"
_NOT_FOUND = (HTTPStatus.NOT_FOUND,)
_NOT_MEASURED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
_QUEUE = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE)
_JOB = f"{_ROOT}/jobs/{{id}}"


async def get_openapi(service: Service, call: Call) -> Answer:
    """This document."""
    del call
    token = bool(service.settings.token_hashes)
    return Answer(raw=_document(token), etag=f"{__version__}-{'token' if token else 'open'}")


@cache
def _document(token: bool) -> bytes:
    return dumped(openapi_document(ROUTES, token=token))


async def get_health(service: Service, call: Call) -> web.StreamResponse:
    """Whether the service answers at all: the word `ok`."""
    del service, call
    return web.Response(text="ok\n", headers={"Cache-Control": "no-store"})


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
        method="POST",
        path=f"{_ROOT}/studies",
        handler=jobs.create_study,
        answer=service_documents.JobDocument,
        summary="Put a new study into the queue",
        tag="studies",
        body=wanted.NewStudy,
        status=HTTPStatus.ACCEPTED,
        problems=_QUEUE,
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/studies",
        handler=studies.list_studies,
        answer=study_documents.StudiesDocument,
        summary="Every study with its progress",
        tag="studies",
    ),
    Route(
        method="GET",
        path=_STUDY,
        handler=studies.get_study,
        answer=study_documents.StudyDocument,
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
        answer=study_documents.FrontDocument,
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
        answer=study_documents.TimesDocument,
        summary="When each trial was begun and finished",
        tag="studies",
        parameters=StudyPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/explain",
        handler=studies.get_explanation,
        answer=study_documents.ExplanationDocument,
        summary="What a study has learnt",
        tag="studies",
        parameters=StudyPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/compare",
        handler=studies.get_comparison,
        answer=study_documents.ComparisonDocument,
        summary="Two configs, and whether their differences are more than noise",
        tag="studies",
        query=CompareQuery,
        problems=_NOT_MEASURED,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/summary",
        handler=studies.get_summary,
        answer=study_documents.SummaryDocument,
        summary="What a study was asked, where it stands, what may be done",
        tag="studies",
        parameters=StudyPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/page/{{part}}",
        handler=studies.get_page_part,
        answer=study_documents.PageDocument,
        summary="A part of what the page shows of a study",
        tag="studies",
        parameters=PagePath,
        query=PageQuery,
        problems=_NOT_FOUND,
    ),
    Route(
        method="POST",
        path=f"{_STUDY}/start",
        handler=jobs.start_study,
        answer=service_documents.JobDocument,
        summary="Go on with a study",
        tag="studies",
        parameters=StudyPath,
        body=wanted.StartStudy,
        body_required=False,
        status=HTTPStatus.ACCEPTED,
        problems=(*_QUEUE, HTTPStatus.NOT_FOUND),
    ),
    Route(
        method="POST",
        path=f"{_STUDY}/stop",
        handler=jobs.stop_study,
        answer=study_documents.Stopping,
        summary="End a study as Ctrl-C would",
        tag="studies",
        parameters=StudyPath,
        body=wanted.StopStudy,
        body_required=False,
        status=HTTPStatus.ACCEPTED,
        problems=_NOT_MEASURED,
    ),
    Route(
        method="GET",
        path=f"{_STUDY}/events",
        handler=events.stream_study_events,
        summary="Live progress of a study as server-sent events",
        tag="events",
        parameters=StudyPath,
        query=EventsQuery,
        media="text/event-stream",
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)

TRIAL_ROUTES = (
    Route(
        method="GET",
        path=f"{_STUDY}/trials",
        handler=studies.list_trials,
        answer=trial_documents.TrialsDocument,
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
        answer=trial_documents.ShowDocument,
        summary="All the evidence of a trial",
        tag="trials",
        parameters=TrialPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_TRIAL}/measurements",
        handler=trials.list_measurements,
        answer=trial_documents.LevelsDocument,
        summary="The load levels of a trial, with every figure",
        tag="measurements",
        parameters=TrialPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_TRIAL}/log",
        handler=trials.get_log,
        answer=trial_documents.TrialLog,
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
        answer=service_documents.PromotionsDocument,
        summary="What was promoted, oldest first",
        tag="promotions",
    ),
    Route(
        method="GET",
        path=_DEPLOYMENT,
        handler=promotions.get_deployment,
        answer=service_documents.PromotionsDocument,
        summary="The history of a deployment",
        tag="promotions",
        parameters=DeploymentPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_DEPLOYMENT}/diff",
        handler=promotions.get_diff,
        answer=service_documents.DiffDocument,
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
        answer=service_documents.PromotionDetail,
        summary="One promotion: files, gate's record",
        tag="promotions",
        parameters=VersionPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="POST",
        path=f"{_ROOT}/promotions",
        handler=promotions.create_promotion,
        answer=service_documents.JobDocument,
        summary="Verify a trial, and render it for production",
        tag="promotions",
        body=wanted.NewPromotion,
        status=HTTPStatus.ACCEPTED,
        problems=(*_QUEUE, HTTPStatus.NOT_FOUND),
    ),
    Route(
        method="POST",
        path=f"{_ROOT}/previews",
        handler=promotions.preview_promotion,
        answer=service_documents.PreviewDocument,
        summary="What a promotion would render and change",
        tag="promotions",
        body=wanted.NewPromotion,
        problems=_NOT_MEASURED,
    ),
    Route(
        method="POST",
        path=f"{_DEPLOYMENT}/rollback",
        handler=promotions.roll_back_deployment,
        answer=service_documents.RolledBack,
        summary="Go back to an earlier version",
        tag="promotions",
        parameters=DeploymentPath,
        body=wanted.Rollback,
        body_required=False,
        problems=_NOT_MEASURED,
    ),
)

JOB_ROUTES = (
    Route(
        method="GET",
        path=f"{_ROOT}/jobs",
        handler=jobs.list_jobs,
        answer=service_documents.JobsDocument,
        summary="What runs, what waits, how the last ones ended",
        tag="jobs",
    ),
    Route(
        method="GET",
        path=_JOB,
        handler=jobs.get_job,
        answer=service_documents.JobDocument,
        summary="One job",
        tag="jobs",
        parameters=JobPath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="DELETE",
        path=_JOB,
        handler=jobs.stop_job,
        answer=service_documents.JobDocument,
        summary="Take a job out of the queue, or end it",
        tag="jobs",
        parameters=JobPath,
        status=HTTPStatus.ACCEPTED,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/log",
        handler=jobs.get_job_log,
        answer=trial_documents.Log,
        summary="A piece of what a job printed",
        tag="logs",
        parameters=JobPath,
        query=LogQuery,
        problems=_NOT_FOUND,
    ),
)

SERVICE_ROUTES = (
    Route(
        method="GET",
        path=f"{_ROOT}/openapi.json",
        handler=get_openapi,
        answer=Anything,
        summary="This document",
        tag="service",
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=get_health,
        summary="Whether the service answers",
        tag="service",
        media="text/plain",
        open_to_all=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=metrics.get_metrics,
        summary="Figures for Prometheus",
        tag="service",
        media="text/plain",
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/service",
        handler=nodes.get_service,
        answer=service_documents.ServiceDocument,
        summary="What this service is and allows",
        tag="service",
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/nodes",
        handler=nodes.list_nodes,
        answer=service_documents.NodesDocument,
        summary="This machine, and the nodes that studies ran on",
        tag="nodes",
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/nodes/{{name}}",
        handler=nodes.get_node,
        answer=service_documents.NodeDetail,
        summary="One node with its wiring",
        tag="nodes",
        parameters=NodePath,
        problems=_NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{_ROOT}/events",
        handler=events.stream_events,
        summary="Everything that changes, as server-sent events",
        tag="events",
        query=EventsQuery,
        media="text/event-stream",
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
)

ROUTES: tuple[Route, ...] = (
    *SESSION_ROUTES,
    *SERVICE_ROUTES,
    *STUDY_ROUTES,
    *TRIAL_ROUTES,
    *PROMOTION_ROUTES,
    *JOB_ROUTES,
)
