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
    trial_documents,
    wanted,
)
from autotune.web.asked import (
    DeploymentPath,
    DiffQuery,
    EventsQuery,
    JobPath,
    LogQuery,
    NodePath,
    VersionPath,
)
from autotune.web.document import Anything
from autotune.web.openapi import openapi_document
from autotune.web.route import NOT_FOUND, OR_CONFLICT, QUEUE, ROOT, Answer, Call, Route, dumped
from autotune.web.service import Service
from autotune.web.study_routes import STUDY_ROUTES, TRIAL_ROUTES

_DEPLOYMENT = f"{ROOT}/promotions/{{name}}"
_JOB = f"{ROOT}/jobs/{{id}}"


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
        path=f"{ROOT}/session",
        handler=sessions.get_session,
        summary="Whether the asker is logged in",
        tag="session",
        answer=sessions.SessionDocument,
        open_to_all=True,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/session",
        handler=sessions.log_in,
        summary="Show the token, and get a cookie",
        tag="session",
        body=sessions.Login,
        status=HTTPStatus.NO_CONTENT,
        open_to_all=True,
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/session",
        handler=sessions.log_out,
        summary="End the cookie's session",
        tag="session",
        status=HTTPStatus.NO_CONTENT,
        open_to_all=True,
    ),
)

PROMOTION_ROUTES = (
    Route(
        method="GET",
        path=f"{ROOT}/promotions",
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
        problems=NOT_FOUND,
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
        problems=OR_CONFLICT,
    ),
    Route(
        method="GET",
        path=f"{_DEPLOYMENT}/{{version}}",
        handler=promotions.get_promotion,
        answer=service_documents.PromotionDetail,
        summary="One promotion: files, gate's record",
        tag="promotions",
        parameters=VersionPath,
        problems=NOT_FOUND,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/promotions",
        handler=promotions.create_promotion,
        answer=service_documents.JobDocument,
        summary="Verify a trial, and render it for production",
        tag="promotions",
        body=wanted.NewPromotion,
        status=HTTPStatus.ACCEPTED,
        problems=(*QUEUE, HTTPStatus.NOT_FOUND),
    ),
    Route(
        method="POST",
        path=f"{ROOT}/previews",
        handler=promotions.preview_promotion,
        answer=service_documents.PreviewDocument,
        summary="What a promotion would render and change",
        tag="promotions",
        body=wanted.NewPromotion,
        problems=OR_CONFLICT,
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
        problems=OR_CONFLICT,
    ),
)

JOB_ROUTES = (
    Route(
        method="GET",
        path=f"{ROOT}/jobs",
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
        problems=NOT_FOUND,
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
        problems=NOT_FOUND,
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
        problems=NOT_FOUND,
    ),
)

SERVICE_ROUTES = (
    Route(
        method="GET",
        path=f"{ROOT}/openapi.json",
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
        path=f"{ROOT}/service",
        handler=nodes.get_service,
        answer=service_documents.ServiceDocument,
        summary="What this service is and allows",
        tag="service",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes",
        handler=nodes.list_nodes,
        answer=service_documents.NodesDocument,
        summary="This machine, and the nodes that studies ran on",
        tag="nodes",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes/{{name}}",
        handler=nodes.get_node,
        answer=service_documents.NodeDetail,
        summary="One node with its wiring",
        tag="nodes",
        parameters=NodePath,
        problems=NOT_FOUND,
    ),
    Route(
        method="GET",
        path=f"{ROOT}/events",
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
