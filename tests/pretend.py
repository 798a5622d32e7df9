"""A device that is not there: tensors say that they lie on it, and refuse what torch would refuse.

So a forgotten `.to(device)` is red on a machine without a GPU. Nothing but the place is pretended:
all numbers are computed, on the CPU, and a whole decoder runs.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

DEVICE_OF = torch.Tensor.device.__get__
TO_ARRAY = {torch.Tensor.numpy, torch.Tensor.__array__}
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
BETWEEN_PLACES = {
    torch.Tensor.copy_,
    torch.Tensor.data.__set__,  # this and the next: Module.to
    torch._has_compatible_shallow_copy_type,
}


def tensors_in(*things):
    """The tensors among these, and inside of tuples, lists and dicts among them."""
    found = []
    for thing in things:
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        elif isinstance(thing, (tuple, list, dict)):
            found += tensors_in(*(thing.values() if isinstance(thing, dict) else thing))
    return found


class Pretend(TorchFunctionMode):
    """Inside, there is a device of this type: `with Pretend("cuda"): model.to("cuda")`.

    Where a tensor lies is where its memory lies, so that views and parameters need no care. As on a
    real one, an operation on tensors of both places is a RuntimeError, an array of a tensor there a
    TypeError, and float64 there as well if it is mps. Allowed are a number from the CPU, that is a
    0-dimensional tensor, indices from there, and `copy_`. calls: how many operations there were.
    """

    def __init__(self, type):
        super().__init__()
        self.device, self.calls = torch.device(type, 0), 0
        self.there = {}  # address: a weak reference, which keeps the address from being used again

    def has(self, tensor):
        return tensor.untyped_storage()._cdata in self.there

    def put(self, tensor):
        """From here on, the tensor lies there, and so does every view of it."""
        if self.device.type == "mps" and tensor.dtype == torch.float64:
            raise TypeError("mps has no float64; go to the CPU first")
        memory = StorageWeakRef(tensor.untyped_storage())
        self.there[memory.cdata] = memory

    def moved(self, tensor, *args, **kwargs):
        """tensor.to(*args, **kwargs), copied if it goes from one place to the other."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        like = [x for x in args if isinstance(x, torch.Tensor)]
        if like:
            goes = self.has(like[0])
        else:
            goes = self.has(tensor) if device is None else device.type == self.device.type
        made = tensor.to(dtype=dtype or tensor.dtype, copy=goes != self.has(tensor))
        if goes:
            self.put(made)
        return made

    def check(self, func, args, tensors, there):
        """Raise what torch would raise if these tensors met there."""
        if func in TO_ARRAY:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        if func in BETWEEN_PLACES:
            return
        free = tensors_in(args[1]) if func in INDEXING and there[0] else []
        for tensor, is_there in zip(tensors, there, strict=True):
            if not (is_there or tensor.dim() == 0 or any(tensor is index for index in free)):
                raise RuntimeError(
                    f"{func.__name__}: expected all tensors to be on the same device, but found at "
                    f"least two devices, {self.device} and cpu"
                )

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.to:
            return self.moved(*args, **kwargs or {})
        if func == torch.Tensor.cpu:
            return self.moved(*args, "cpu")
        tensors = tensors_in(args, kwargs)
        there = [self.has(tensor) for tensor in tensors]
        if func == DEVICE_OF:
            return self.device if there[0] else torch.device("cpu")
        if any(there):
            self.check(func, args, tensors, there)
        kwargs, goes = dict(kwargs or {}), any(there)
        if kwargs.get("device") is not None:
            goes = torch.device(kwargs["device"]).type == self.device.type
            kwargs["device"] = "cpu"
        made = func(*args, **kwargs)
        if goes:
            self.calls += 1
            for tensor in tensors_in(made):
                if not self.has(tensor):
                    self.put(tensor)
        return made
