"""What ``--diagnose`` looks at of an agent."""

from __future__ import annotations

from yurttunnel.agent.settings import Settings, StandaloneSettings
from yurttunnel.ops.diagnose.command import Subject


def subject(settings: Settings) -> Subject:
    """Name the agent's port, its files, and the secret that its command line may hold."""
    mode = settings.mode
    if isinstance(mode, StandaloneSettings):
        directory, file, secret = mode.state_dir, mode.join_token_file, mode.join_token
    else:
        directory, file, secret = mode.cert_dir, mode.kube_config, None
    return Subject(
        program="yurttunnel-agent",
        meta_host=settings.meta_host,
        meta_port=settings.meta_port,
        directories=(directory,),
        files=() if file is None else (file,),
        secret_flags=("--join-token",),
        secrets=() if secret is None else (secret.strip(),),
    )
