"""The stand-in W&B server with artifacts: versions of one name, with aliases, files and metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.test_adapters.wandb_server import ENTITY, WandbServer


@dataclass
class StoredArtifact:
    """One version of one artifact."""

    id: str
    name: str
    kind: str
    version: str
    digest: str
    run: str
    where: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # name -> under which the run's files hold it
    state: str = "PENDING"


class ArtifactServer(WandbServer):
    """A :class:`WandbServer` that artifacts can be sent to."""

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: list[StoredArtifact] = []
        self.aliases: dict[str, str] = {}  # name:alias -> version

    def committed(self, name: str) -> list[StoredArtifact]:
        """Return the versions of an artifact that are complete, in order."""
        return [one for one in self.artifacts if one.name == name and one.state == "COMMITTED"]

    def content(self, artifact: StoredArtifact, name: str) -> bytes:
        """Return what one file of an artifact holds."""
        run = self.run(artifact.where["project"], artifact.run, artifact.where["entity"])
        return run.files[artifact.files[name]]

    def _artifact_type(self, variables: dict[str, Any]) -> dict[str, Any]:
        known = [one for one in self.artifacts if one.name == variables["name"].partition(":")[0]]
        return {"project": {"artifact": {"artifactType": {"name": known[0].kind}} if known else None}}

    def _create(self, variables: dict[str, Any]) -> dict[str, Any]:
        given = variables.get("input", variables)
        name, digest = given["artifactCollectionName"], given["digest"]
        versions = [one for one in self.artifacts if one.name == name]
        found = next((one for one in versions if one.digest == digest), None)
        if found is None:
            where = {"entity": given.get("entityName") or ENTITY, "project": given["projectName"]}
            found = StoredArtifact(
                f"artifact-{len(self.artifacts)}",
                name,
                given["artifactTypeName"],
                f"v{len(versions)}",
                digest,
                given.get("runName") or "",
                where,
                json.loads(given.get("metadata") or "{}"),
            )
            self.artifacts.append(found)
        for alias in given.get("aliases") or []:
            self.aliases[f"{name}:{alias['alias']}"] = found.version
        return {"createArtifact": {"artifact": {**self._described(found)}}}

    def _described(self, artifact: StoredArtifact) -> dict[str, Any]:
        return {
            "id": artifact.id,
            "state": artifact.state,
            "artifactSequence": {"id": f"sequence-{artifact.name}", "latestArtifact": None},
        }

    def _find_artifact(self, artifact_id: str) -> StoredArtifact:
        return next(one for one in self.artifacts if one.id == artifact_id)

    def _upload_url(self, artifact: StoredArtifact, file: str) -> str:
        where = artifact.where
        return f"{self.url}/upload/{where['entity']}/{where['project']}/{artifact.run}/{artifact.id}/{file}"

    def _manifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        artifact = self._find_artifact(variables.get("artifactID") or variables["artifactManifestID"])
        url = self._upload_url(artifact, variables.get("name") or "manifest.json")
        file = {"id": f"{artifact.id}-manifest", "uploadUrl": url, "uploadHeaders": []}
        return {"artifactManifest": {"id": artifact.id, "file": file}}

    def _files(self, variables: dict[str, Any]) -> dict[str, Any]:
        edges = []
        for spec in variables["input"]["artifactFiles"]:
            artifact = self._find_artifact(spec["artifactID"])
            artifact.files[spec["name"]] = f"{artifact.id}/{spec['name']}"
            url = self._upload_url(artifact, spec["name"])
            edges.append(
                {
                    "node": {
                        "id": f"{artifact.id}-{spec['name']}",
                        "name": spec["name"],
                        "displayName": spec["name"],
                        "storagePath": None,
                        "uploadUrl": url,
                        "uploadHeaders": [],
                        "uploadMultipartUrls": None,
                        "artifact": {"id": artifact.id},
                    }
                }
            )
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _commit(self, variables: dict[str, Any]) -> dict[str, Any]:
        artifact = self._find_artifact(variables["artifactID"])
        artifact.state = "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": artifact.id, "digest": artifact.digest}}}

    _OPERATIONS: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        **WandbServer._OPERATIONS,
        "ArtifactType": _artifact_type,
        "CreateArtifact": _create,
        "CreateArtifactManifest": lambda self, variables: {"createArtifactManifest": self._manifest(variables)},
        "UpdateArtifactManifest": lambda self, variables: {"updateArtifactManifest": self._manifest(variables)},
        "CreateArtifactFiles": _files,
        "CommitArtifact": _commit,
    }
