"""One manifest of every kind of workload with pods, each with a comment and without our annotations."""

from __future__ import annotations

POD_SPEC = """\
containers:
- name: train
  image: pytorch/pytorch  # pinned later
  resources:
    limits:
      nvidia.com/gpu: 1
"""


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


def _template(by: int) -> str:
    """A template with its key, indented to that column."""
    return _indented("template:\n  spec:\n" + _indented(POD_SPEC, 4), by)


def _workload(kind: str, api: str, spec: str) -> str:
    return f"# keep me\napiVersion: {api}\nkind: {kind}\nmetadata:\n  name: task\nspec:\n{spec}"


_CPU = "template:\n  spec:\n    containers:\n    - {name: main, image: ray}\n"

# kind: (manifest, where the annotations belong)
KINDS: dict[str, tuple[str, str]] = {
    "Pod": (_workload("Pod", "v1", _indented(POD_SPEC, 2)), "metadata.annotations"),
    **{
        kind: (_workload(kind, "apps/v1", _template(2)), "spec.template.metadata.annotations")
        for kind in ("Job", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Notebook")
    },
    "CronJob": (
        _workload("CronJob", "batch/v1", "  schedule: 0 3 * * *\n  jobTemplate:\n    spec:\n" + _template(6)),
        "spec.jobTemplate.spec.template.metadata.annotations",
    ),
    "JobSet": (
        _workload(
            "JobSet", "jobset.x-k8s.io/v1alpha2",
            "  replicatedJobs:\n  - name: workers\n    template:\n      spec:\n" + _template(8),
        ),
        "spec.replicatedJobs[0].template.spec.template.metadata.annotations",
    ),
    "PyTorchJob": (
        _workload(
            "PyTorchJob", "kubeflow.org/v1",
            "  pytorchReplicaSpecs:\n    Master:\n      replicas: 1\n" + _indented(_CPU, 6)
            + "    Worker:\n      replicas: 4\n" + _template(6),
        ),
        "spec.pytorchReplicaSpecs.Worker.template.metadata.annotations",
    ),
    "MPIJob": (
        _workload(
            "MPIJob", "kubeflow.org/v2beta1",
            "  mpiReplicaSpecs:\n    Launcher:\n" + _indented(_CPU, 6) + "    Worker:\n" + _template(6),
        ),
        "spec.mpiReplicaSpecs.Worker.template.metadata.annotations",
    ),
    "TFJob": (
        _workload("TFJob", "kubeflow.org/v1", "  tfReplicaSpecs:\n    Worker:\n" + _template(6)),
        "spec.tfReplicaSpecs.Worker.template.metadata.annotations",
    ),
    "TrainJob": (
        _workload(
            "TrainJob", "trainer.kubeflow.org/v1alpha1",
            "  runtimeRef:\n    name: torch-distributed\n  trainer:\n    numNodes: 2\n    resourcesPerNode:\n"
            "      limits:\n        nvidia.com/gpu: 1\n",
        ),
        "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.metadata.annotations",
    ),
    "ClusterTrainingRuntime": (
        _workload(
            "ClusterTrainingRuntime", "trainer.kubeflow.org/v1alpha1",
            "  template:\n    spec:\n      replicatedJobs:\n      - name: node\n        template:\n          spec:\n"
            + _template(12),
        ),
        "spec.template.spec.replicatedJobs[0].template.spec.template.metadata.annotations",
    ),
    "RayCluster": (
        _workload(
            "RayCluster", "ray.io/v1",
            "  headGroupSpec:\n" + _indented(_CPU, 4) + "  workerGroupSpecs:\n  - groupName: gpu\n" + _template(4),
        ),
        "spec.workerGroupSpecs[0].template.metadata.annotations",
    ),
    "RayJob": (
        _workload(
            "RayJob", "ray.io/v1",
            "  rayClusterSpec:\n    headGroupSpec:\n" + _indented(_CPU, 6)
            + "    workerGroupSpecs:\n    - groupName: gpu\n" + _template(6),
        ),
        "spec.rayClusterSpec.workerGroupSpecs[0].template.metadata.annotations",
    ),
    "RayService": (
        _workload(
            "RayService", "ray.io/v1",
            "  rayClusterConfig:\n    headGroupSpec:\n" + _indented(_CPU, 6)
            + "    workerGroupSpecs:\n    - groupName: gpu\n" + _template(6),
        ),
        "spec.rayClusterConfig.workerGroupSpecs[0].template.metadata.annotations",
    ),
    "Volcano Job": (
        _workload(
            "Job", "batch.volcano.sh/v1alpha1",
            "  tasks:\n  - name: ps\n" + _indented(_CPU, 4) + "  - name: worker\n" + _template(4),
        ),
        "spec.tasks[1].template.metadata.annotations",
    ),
    "LeaderWorkerSet": (
        _workload(
            "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1",
            "  leaderWorkerTemplate:\n" + _indented(_CPU.replace("template:", "leaderTemplate:"), 4)
            + _template(4).replace("    template:", "    workerTemplate:"),
        ),
        "spec.leaderWorkerTemplate.workerTemplate.metadata.annotations",
    ),
    "List": (
        "kind: List\napiVersion: v1\nitems:\n"
        "- kind: ConfigMap\n  metadata: {name: settings}\n"
        "- kind: Job\n  metadata: {name: task}\n  spec:\n" + _template(4),
        "items[1].spec.template.metadata.annotations",
    ),
}  # fmt: skip
