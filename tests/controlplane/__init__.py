"""A real Kubernetes control plane for tests and benchmarks. Start reading at plane.py."""

from .api import Api, ApiError
from .binaries import Binaries, BuildError, built_binaries
from .eventually import PATIENCE_SECONDS, eventually
from .history import Cluster, Event, Fault, History, NodeState, PodState, Violation, quantity
from .plane import ControlPlane
from .processes import Process, ProcessError, environment_as_in_the_image, free_port, kubelet, under_host_name
from .recorder import Recorder
from .scheduler import Scheduler, extender, scheduler_config

__all__ = [
    "PATIENCE_SECONDS",
    "Api",
    "ApiError",
    "Binaries",
    "BuildError",
    "Cluster",
    "ControlPlane",
    "Event",
    "Fault",
    "History",
    "NodeState",
    "PodState",
    "Process",
    "ProcessError",
    "Recorder",
    "Scheduler",
    "Violation",
    "built_binaries",
    "environment_as_in_the_image",
    "eventually",
    "extender",
    "free_port",
    "kubelet",
    "quantity",
    "scheduler_config",
    "under_host_name",
]
