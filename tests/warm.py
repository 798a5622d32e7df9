"""Kernels forked from one process that has imported what every chapter imports: 4 s less for each.

Only on Linux: elsewhere a fork of PyTorch is not safe, or there is none. Run as a script, this file
is that process: it forks a kernel for each line of JSON that it reads, which prints its number.
"""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path


@functools.cache
def warm_process(path):
    """The process with this PYTHONPATH, which Python reads at its start; ends with its stdin."""
    command, pipe = [sys.executable, str(Path(__file__).resolve())], subprocess.PIPE
    env = {k: v for k, v in (os.environ | {"PYTHONPATH": path}).items() if v is not None}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)


class Forked:
    """A kernel that was forked, with what jupyter_client uses of a subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        """None while it runs; whoever forked it took its exit status."""
        try:
            return os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0

    def wait(self, timeout=None):
        return self.poll()

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def launcher(cold):
    """jupyter_client's launch_kernel, which forks where that gives what `cold` would start."""

    @functools.wraps(cold)
    def launch_kernel(command, *args, env=None, cwd=None, **more):
        env = dict(os.environ if env is None else env)
        module = command[1:3] == ["-m", "ipykernel_launcher"]
        if sys.platform != "linux" or not module:
            return cold(command, *args, env=env, cwd=cwd, **more)
        process = warm_process(env.get("PYTHONPATH"))
        request = {"arguments": command[3:], "env": env, "cwd": str(cwd or os.getcwd())}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return Forked(int(process.stdout.readline()))

    return launch_kernel


def become(request):
    """Be a kernel that was started like this."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # before its number is known: signals are sent to its group
    print(os.getpid(), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # without it, this does not go on
    sys.argv = ["ipykernel_launcher", *request["arguments"], parent]
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    del sys.path[0]  # this folder, which a kernel does not see
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel sets it
    import matplotlib.pyplot  # noqa: F401
    import matplotlib_inline.backend_inline  # noqa: F401
    import torch  # noqa: F401
    import tqdm  # noqa: F401
    from ipykernel import kernelapp

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a kernel that ends is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends this
    for line in sys.stdin:
        if os.fork() == 0:
            become(json.loads(line))
            os._exit(0)
