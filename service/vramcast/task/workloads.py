"""Finds the pod templates in Jobs, Deployments, and the workloads of Kubeflow, Ray, Volcano and others.

Annotations work only on pods, so a task's description belongs into the template that its pods are made from. Also
finds annotations that were put elsewhere. Input is parsed YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from vramcast.task.task import DESCRIBES_NOTHING
from vramcast.task.vocabulary import PREFIX

# Keys and indices from the top of a document.
Place = tuple[str | int, ...]

# Where templates are, and the role of their pods. `*` matches every entry; in the role it stands for the entry's name.
_PLACES: tuple[tuple[str, str], ...] = (
    ("spec.template", ""),  # Job, Deployment, StatefulSet, DaemonSet, ReplicaSet, and others of the same shape
    ("spec.jobTemplate.spec.template", ""),  # CronJob
    ("spec.replicatedJobs.*.template.spec.template", "*"),  # JobSet
    ("spec.template.spec.replicatedJobs.*.template.spec.template", "*"),  # TrainingRuntime, ClusterTrainingRuntime
    ("spec.*ReplicaSpecs.*.template", "*"),  # PyTorchJob, MPIJob, TFJob, JAXJob, XGBoostJob, PaddleJob
    ("spec.tasks.*.template", "*"),  # Volcano's Job
    ("spec.headGroupSpec.template", "head"),  # RayCluster
    ("spec.workerGroupSpecs.*.template", "worker *"),
    ("spec.rayClusterSpec.headGroupSpec.template", "head"),  # RayJob
    ("spec.rayClusterSpec.workerGroupSpecs.*.template", "worker *"),
    ("spec.submitterPodTemplate", "submitter"),
    ("spec.rayClusterConfig.headGroupSpec.template", "head"),  # RayService
    ("spec.rayClusterConfig.workerGroupSpecs.*.template", "worker *"),
    ("spec.leaderWorkerTemplate.leaderTemplate", "leader"),  # LeaderWorkerSet
    ("spec.leaderWorkerTemplate.workerTemplate", "worker"),
    ("template", ""),  # PodTemplate
)

# A TrainJob has no template: it patches its runtime's. The first form is Kubeflow Trainer 2.2's, the second is older.
_PATCHES: tuple[str, ...] = (
    "spec.runtimePatches.*.trainingRuntimeSpec.template.spec.replicatedJobs.*.template.spec.template",
    "spec.podTemplateOverrides.*",
)
_TRAIN_JOB_ROLE = "node"
_NEW_PATCH: Place = (
    "spec", "runtimePatches", 0, "trainingRuntimeSpec", "template", "spec", "replicatedJobs", 0, "template", "spec",
    "template",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template, or a Pod itself, and its place in the document."""

    kind: str
    name: str
    namespace: str
    role: str  # such as worker or head; empty if the workload has only one template
    place: Place
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    # False for a TrainJob: Kubeflow does not let it patch schedulerName.
    names_scheduler: bool = True
    # Other values that the document needs before this template can be added to it.
    required: Mapping[Place, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For messages: `RayJob/tune worker gpu`."""
        return f"{self.kind}/{self.name}{f' {self.role}' if self.role else ''}"

    @property
    def annotations_place(self) -> Place:
        return (*self.place, "metadata", "annotations")

    @property
    def scheduler_place(self) -> Place:
        return (*self.place, "spec", "schedulerName")

    @property
    def tolerations(self) -> Sequence[Any]:
        given = self.spec.get("tolerations")
        return given if isinstance(given, list) else ()

    @property
    def toleration_place(self) -> Place:
        """Of one more toleration."""
        return (*self.place, "spec", "tolerations", len(self.tolerations))

    @property
    def annotations(self) -> Mapping[str, Any]:
        return _mapping(self.metadata.get("annotations"))

    def pod(self) -> dict[str, Any]:
        """The manifest of a pod made from this template."""
        metadata = {**self.metadata, "name": self.name, "namespace": self.namespace}
        return {"kind": "Pod", "metadata": metadata, "spec": self.spec}


def find_templates(document: Any) -> list[Template]:
    """Every pod template of a document, including those in the items of a List."""
    return [template for top, item in _items(document) for template in _find(item, top)]


@dataclass(frozen=True, slots=True)
class MisplacedAnnotation:
    """One of our annotations in a place that no pod inherits, and the templates that it may be meant for."""

    place: Place
    name: str
    value: Any
    templates: tuple[Template, ...]


def find_misplaced(document: Any) -> list[MisplacedAnnotation]:
    """Annotations on the Job instead of its template, or among the labels."""
    return [
        MisplacedAnnotation((*top, *place), name, value, templates)
        for top, item in _items(document)
        if (templates := tuple(_find(item, top)))
        for place, mapping in _named(item, ("annotations", "labels"))
        if (*top, *place) not in {template.annotations_place for template in templates}
        for name, value in mapping.items()
        if isinstance(name, str) and name.startswith(PREFIX) and name not in DESCRIBES_NOTHING
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(document: Any) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    if not isinstance(document, Mapping):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), Sequence):
        for index, item in enumerate(document["items"]):
            for place, inner in _items(item):
                yield ("items", index, *place), inner
        return
    yield (), document


def _find(item: Mapping[str, Any], top: Place) -> list[Template]:
    return _pod(item, top) or _patches(item, top) or list(_templates(item, top))


def _pod(item: Mapping[str, Any], place: Place) -> list[Template]:
    if item.get("kind", "Pod") != "Pod" or "containers" not in _mapping(item.get("spec")):
        return []
    return [_template(item, "", place, item)]


def _template(item: Mapping[str, Any], role: str, place: Place, content: Mapping[str, Any], **more: Any) -> Template:
    metadata = _mapping(item.get("metadata"))
    return Template(
        kind=str(item.get("kind", "Pod")),
        name=str(metadata.get("name") or metadata.get("generateName") or ""),
        namespace=str(metadata.get("namespace") or "default"),
        role=role,
        place=place,
        metadata=_mapping(content.get("metadata")),
        spec=more.pop("spec", _mapping(content.get("spec"))),
        **more,
    )


def _templates(item: Mapping[str, Any], top: Place) -> Iterator[Template]:
    for pattern, named in _PLACES:
        for place, role, content in _matches(item, pattern.split(".")):
            if isinstance(content, Mapping) and "containers" in _mapping(content.get("spec")):
                yield _template(item, named.replace("*", role), (*top, *place), content)


def _patches(item: Mapping[str, Any], top: Place) -> list[Template]:
    """A TrainJob's patch of its node pods; if there is none, the place for a new one."""
    if item.get("kind") != "TrainJob":
        return []
    resources = _mapping(_mapping(_mapping(item.get("spec")).get("trainer")).get("resourcesPerNode"))
    spec = {"containers": [{"name": _TRAIN_JOB_ROLE, "resources": resources}]}
    found = [
        _template(item, "", (*top, *place), content, spec=spec, names_scheduler=False)
        for pattern in _PATCHES
        for place, role, content in _matches(item, pattern.split("."))
        if isinstance(content, Mapping) and _patches_nodes(content, role)
    ]
    if found:
        return found[:1]
    required = {
        (*top, "spec", "runtimePatches", 0, "manager"): "vramcast.dev/annotate",
        (*top, *_NEW_PATCH[:8], "name"): _TRAIN_JOB_ROLE,
    }
    return [_template(item, "", (*top, *_NEW_PATCH), {}, spec=spec, names_scheduler=False, required=required)]


def _patches_nodes(content: Mapping[str, Any], role: str) -> bool:
    targets = content.get("targetJobs")
    if isinstance(targets, Sequence):
        return any(_mapping(target).get("name") == _TRAIN_JOB_ROLE for target in targets)
    return role == _TRAIN_JOB_ROLE


def _matches(value: Any, steps: list[str], place: Place = (), role: str = "") -> Iterator[tuple[Place, str, Any]]:
    """(place, role, value) of everything that matches the steps."""
    if not steps:
        yield place, role, value
        return
    step, *rest = steps
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, str) and fnmatchcase(key, step):
                yield from _matches(value[key], rest, (*place, key), key if step == "*" else role)
    elif step == "*" and isinstance(value, Sequence) and not isinstance(value, str):
        for index, entry in enumerate(value):
            named = _mapping(entry)
            yield from _matches(entry, rest, (*place, index), str(named.get("name") or named.get("groupName") or index))


def _named(value: Any, names: tuple[str, ...], place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Every mapping with one of these names, at any depth."""
    entries: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, Mapping):
        if place and place[-1] in names:
            yield place, value
            return
        entries = iter(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        entries = iter(enumerate(value))
    for step, inner in entries:
        yield from _named(inner, names, (*place, step))
