"""Reports what a training process used, so that vramcast knows what its next run needs.

One line in a script:

    import vramcast.report

or none, in the command of the container:

    python -m vramcast.report train.py --epochs 3

The report goes into the container's termination message, from where the kubelet copies it into the pod's status. It
needs nothing but the standard library, and says nothing about memory without torch. It must never fail a job: whatever
goes wrong here stays here.

This package imports nothing else of vramcast. Training images run it with Python versions that vramcast itself does
not support: keep to the syntax of Python 3.8.
"""

from vramcast.report.reporter import start

start()
