"""Files for the machines of a federation: systemd units and the configuration of a proxy."""

from __future__ import annotations

import sys
from pathlib import Path

from protofl_flower.deployment.federation_file import Federation

UNIT = """\
[Unit]
Description=protofl {what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={python} -c "from protofl_cli.start import main; main()" {command}
Restart=on-failure
RestartSec=15
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""

PROXY = """\
# nginx: nodes reach the paths of their own programs, and nothing else of the server.
server {{
    listen {port} ssl;
    server_name {host};
    ssl_certificate     {folder}/server.crt;
    ssl_certificate_key {folder}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 64m;
    location /v1/fleet/ {{
        limit_except POST {{ deny all; }}
        proxy_pass https://{address}/v1/fleet/; # with its path: the server gets what was compared
        proxy_ssl_trusted_certificate {folder}/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 300s;
    }}
    location / {{ return 403; }}
}}
"""


def write_server_files(federation: Federation) -> list[Path]:
    """Write the proxy's configuration and the server's unit; return the files."""
    folder = federation.folder
    host, _, port = federation.public.rpartition(":")
    about = {"host": host, "port": port, "folder": folder, "address": federation.address}
    proxy, unit = folder / "proxy.conf", folder / "protofl-server.service"
    proxy.write_text(PROXY.format(**about), encoding="utf-8")
    unit.write_text(unit_text("server", f"deploy server {folder}"), encoding="utf-8")
    return [proxy, unit]


def unit_text(what: str, command: str) -> str:
    """Return a systemd unit for a command of protofl."""
    return UNIT.format(what=what, command=command, python=sys.executable)
