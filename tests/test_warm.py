"""A kernel that is forked from a warm process is what a fresh one is."""

import os
import sys
from pathlib import Path

import pytest
import warm
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import local_provisioner

SAID = """
import os, signal, sys
from ipykernel.kernelapp import IPKernelApp
ends_with_its_parent = IPKernelApp.instance().parent_handle == os.getppid()
own = sorted(set(sys.modules) & {"nanogpt", "pytest", "conftest", "sitecustomize", "warm"})
(sys.path, os.getcwd(), os.environ["SAID"], own, signal.getsignal(signal.SIGCHLD).name, __name__,
 ends_with_its_parent)
"""


def said_by_a_kernel(cwd, env):
    """(what it says of itself, its parent's process number)."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(cwd), env=env)
    try:
        shown = []
        for code in (SAID, "os.getppid()"):
            hook = lambda message: shown.append(message["content"].get("data"))  # noqa: E731
            client.execute_interactive(code, timeout=60, output_hook=hook)
        return [data["text/plain"] for data in shown if data]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")
def test_a_forked_kernel_is_what_a_fresh_one_is(tmp_path, monkeypatch):
    path = os.pathsep.join([str(Path(__file__).with_name("offline")), os.environ["PYTHONPATH"]])
    env = os.environ | {"SAID": "yes", "PYTHONPATH": path}  # not the one of this process
    forked, parent = said_by_a_kernel(tmp_path, env)
    cold = local_provisioner.launch_kernel.__wrapped__
    monkeypatch.setattr(local_provisioner, "launch_kernel", cold)
    fresh, ours = said_by_a_kernel(tmp_path, env)
    assert int(parent) == warm.warm_process(path).pid and int(ours) == os.getpid()
    assert forked == fresh and forked.endswith("True)") and "sitecustomize" in forked
