"""One vocabulary of GPU types: which spellings of NVML, Slurm and people mean the same GPU, and which include which.

A name has a family (``A100``, ``RTX4090``), may have a memory, and may have further words (``PCIe``). A job asks for what its
name says: any A100 serves ``a100``, those of 80 GB alone serve ``A100 80GB``, those with the word alone ``A100 PCIe``. A slice of
a GPU (MIG) serves the same slice alone. Names without a model number are compared as they are, but for capital letters.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from policies.model.cluster import Cluster
from policies.model.job import JobSpec
from policies.training.hardware import GPU_MODELS, GpuModel

_GRES = re.compile(r"^(?:gres[:/])?gpu[:/]([^:]+)(?::\d+)?$", re.IGNORECASE)
_BRANDS = re.compile(r"^(?:(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|AMD|Instinct|Radeon|GPU)[\s_\-]+)+", re.IGNORECASE)
_MODEL = re.compile(r"(?:(?:RTX|GTX) ?)?[A-Za-z]*\d+[A-Za-z]*(?: Ti| SUPER)?(?![A-Za-z\d.])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s_\-/]+")
_IGNORED = re.compile(r"nvidia|tesla|geforce|gpu|hbm\d?e?|sxm\d?")
_MEMORY = re.compile(r"(\d{1,3})(?:gi?b?)?")
_SLICE = re.compile(r"\d+g\.\d+gb")
_ROUNDED_GIB = 4
"""Names and NVML round the memory: an H100 of 80 GB, an H200 of 141 or 144, a V100 of 31.7 GiB."""


@dataclass(frozen=True, slots=True)
class GpuName:
    """What a name says. ``family``: the model number without brand, the whole name where it has none. ``memory_gib``: None unless
    said, or stated beside the name. ``words``: further words in lower case. ``exact``: the known type whose name this is.
    """

    family: str
    memory_gib: float | None
    words: frozenset[str]
    exact: str | None = None

    @property
    def models(self) -> tuple[GpuModel, ...]:
        """The known types that the name may mean, in the order of the table."""
        if self.exact is not None:
            return (GPU_MODELS[self.exact],)
        return () if self.words else tuple(_members(self._stem, self.memory_gib))

    @property
    def model(self) -> GpuModel | None:
        """The known type that it means; None for an unknown one, and where the memory that it leaves open tells types apart."""
        found = self.models
        return found[0] if found and len({model.memory_bytes for model in found}) == 1 else None

    @property
    def canonical(self) -> str:
        """One name for all spellings: that of the known type, else the family with what is said beside it."""
        if self.model is not None:
            return self.model.name
        memory = () if self.memory_gib is None or self.models else (f"{self.memory_gib:g}",)
        return "-".join((self._stem.upper(), *memory, *sorted(self.words)))

    def serves(self, asked: "GpuName") -> bool:
        """Whether a server with GPUs of this name has what a job with the name ``asked`` wants."""
        if self._stem != asked._stem or not asked.words <= self.words:
            return False
        if {word for word in self.words if _SLICE.fullmatch(word)} - asked.words:
            return False
        if asked.memory_gib is None:
            return True
        memory_gib = self.memory_gib
        if memory_gib is None and self.model is not None:
            memory_gib = self.model.memory_bytes / 2**30
        return memory_gib is not None and abs(memory_gib - asked.memory_gib) <= _ROUNDED_GIB

    @property
    def _stem(self) -> str:
        return _stem(self.family)


def _stem(family: str) -> str:
    """The family as it is compared: ``RTX A6000`` is an ``a6000``."""
    return re.sub("^[rg]tx(?=.)", "", family.casefold())


@cache
def _members(stem: str, memory_gib: float | None) -> Sequence[GpuModel]:
    family = [model for name, model in GPU_MODELS.items() if _stem(name.partition("-")[0]) == stem]
    if memory_gib is None:
        return family
    return [model for model in family if abs(model.memory_bytes / 2**30 - memory_gib) <= _ROUNDED_GIB]


@lru_cache(maxsize=4096)
def gpu_name(text: str, memory_gib: float | None = None) -> GpuName:
    """What ``text`` says; ``memory_gib``: of its GPUs, where it is stated beside the name."""
    exact = {name.casefold(): name for name in GPU_MODELS}.get(text.casefold())
    gres = _GRES.match(text.strip())
    plain = gres[1] if gres else text.strip()
    spaced = _SEPARATORS.sub(" ", _BRANDS.sub("", plain))
    found = _MODEL.match(spaced)
    if found is None:
        return GpuName(plain, memory_gib, frozenset())
    said: float | None = None
    words: set[str] = set()
    for word in spaced[found.end() :].casefold().split():
        if said is None and (memory := _MEMORY.fullmatch(word)) is not None:
            said = float(memory[1])
        elif not _IGNORED.fullmatch(word):
            words.add(word)
    family = found.group().replace(" ", "")
    return GpuName(family, said if said is not None else memory_gib, frozenset(words), exact)


def types_meant(asked: str, cluster: Cluster) -> tuple[str, ...]:
    """The cluster's GPU types that serve a name; a type that has exactly this name alone.

    One name states no preference between them, so the fastest comes first; equally fast ones are in the order of the servers.
    """
    types = cluster.gpus_by_type
    if asked in types:
        return (asked,)
    wanted, speeds = gpu_name(asked), cluster.gpu_speed_by_type
    found = [name for name in types if gpu_name(name, cluster.gpu_memory_by_type[name]).serves(wanted)]
    return tuple(sorted(found, key=lambda name: -speeds[name]))


def with_types_of(spec: JobSpec, cluster: Cluster) -> JobSpec:
    """The job with the cluster's names of the GPU types that it takes; names that no server serves stay."""
    if spec.gpu_type is None or all(name in cluster.gpus_by_type for name in spec.gpu_types):
        return spec
    first, *others = meant_by(spec.gpu_types, cluster)
    return replace(spec, gpu_type=first, gpu_type_fallbacks=tuple(others))


def meant_by(names: Iterable[str], cluster: Cluster) -> tuple[str, ...]:
    """The cluster's types that serve one of the names, each once, in the order of the names; a name that none serves stays."""
    return tuple(dict.fromkeys(found for name in names for found in types_meant(name, cluster) or (name,)))
