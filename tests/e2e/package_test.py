#!/usr/bin/env python3
"""The Debian package: what it holds, and that it can be installed, run as its own user, and removed without a trace.

It is made from the build that is tested and installed into a folder, where dpkg runs its scripts; nothing of this machine is
changed. There is no systemd to start the unit: the unit is checked by systemd-analyze, and its commands are run by hand.
"""

import functools
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import serving

BUILD = pathlib.Path(serving.BINARY).parent
CONFIG = "etc/spillway/spillway.toml"


def run(*arguments, **more):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, **more)


def needs(tool, package):
    return unittest.skipIf(shutil.which(tool) is None, f"needs {tool}: Debian's package {package}")


@functools.cache
def package():
    """(folder, package, what it holds), made once."""
    folder = pathlib.Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    folder.chmod(0o755)  # another user runs what lies here
    done = run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [deb] = folder.glob("spillway_*.deb")
    assert run("dpkg-deb", "-x", deb, folder / "tree").returncode == 0
    return folder, deb, folder / "tree"


@needs("dpkg-shlibdeps", "dpkg-dev")
class WithPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder, cls.deb, cls.tree = package()

    def unit(self):
        """{key: [values]} of the unit."""
        found = {}
        for line in (self.tree / "usr/lib/systemd/system/spillway.service").read_text().splitlines():
            if "=" in line and not line.startswith("#"):
                key, value = line.split("=", 1)
                found.setdefault(key, []).append(value)
        return found


class Package(WithPackage):
    def test_it_holds_what_it_should(self):
        listed = run("dpkg-deb", "-c", self.deb).stdout
        for name in ("usr/bin/spillway", "usr/lib/systemd/system/spillway.service", "usr/lib/sysusers.d/spillway.conf", CONFIG,
                     "usr/share/spillway/grafana-dashboard.json", "usr/share/doc/spillway/operations.md",
                     "usr/share/doc/spillway/copyright", "usr/share/man/man1/spillway.1.gz"):
            self.assertRegex(listed, rf"(?m) root/root .* \./{re.escape(name)}$")
        self.assertNotIn(".wants/", listed, "the unit is not enabled")
        fields = run("dpkg-deb", "-f", self.deb).stdout
        self.assertIn("Package: spillway\n", fields)
        self.assertRegex(fields, r"Depends: .*systemd \| systemd-standalone-sysusers.*libc6 \(>= ")
        self.assertRegex(fields, r"Depends: .*libcurl4 \(>= ", "models by name")
        done = run(self.tree / "usr/bin/spillway", "--version")
        self.assertEqual(done.returncode, 0, done.stderr)
        runpath = run("readelf", "-d", self.tree / "usr/bin/spillway").stdout
        self.assertNotIn("RUNPATH", runpath, "no library of the build folder")

    @needs("lintian", "lintian")
    def test_lintian_finds_no_error(self):
        # The project has no address for mail.
        done = run("lintian", "--fail-on", "error", "--allow-root", "--suppress-tags",
                   "bogus-mail-host,bogus-mail-host-in-debian-changelog", self.deb)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @needs("systemd-analyze", "systemd")
    def test_systemd_takes_the_unit(self):
        text = (self.tree / "usr/lib/systemd/system/spillway.service").read_text()
        unit = self.folder / "spillway.service"
        # The program of the package, which is not installed here.
        unit.write_text(text.replace("=/usr/bin/spillway", f"={self.tree}/usr/bin/spillway"))
        done = run("systemd-analyze", "verify", "--man=no", unit)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_the_unit_starts_only_with_a_model(self):
        [condition] = self.unit()["ExecCondition"]
        for text, status in (((self.tree / CONFIG).read_text(), 1), ("port = 1\n", 1), ("  # model = \"x\"\n", 1),
                             ("port = 1\n model = \"x\"\n", 0)):
            config = self.folder / "condition.toml"
            config.write_text(text)
            done = run(*shlex.split(condition.replace("/" + CONFIG, str(config))))
            self.assertEqual(done.returncode, status, text)

    def test_the_config_as_shipped_holds_options_alone(self):
        shipped = (self.tree / CONFIG).read_text()
        all_on = re.sub(r"^# (?=[a-z-]+ = )", "", shipped, flags=re.M)
        self.assertIn("\nmodel = ", all_on)
        config = self.folder / "all.toml"
        config.write_text(all_on)
        done = run(self.tree / "usr/bin/spillway", "serve", "--config", config)
        self.assertEqual(done.returncode, 1, "every option is known; the model is not there: " + done.stderr)
        self.assertIn("/var/lib/spillway/model.gguf", done.stderr)


@unittest.skipIf(os.geteuid() != 0, "needs root: files of another user are made")
@needs("systemd-sysusers", "systemd")
class Installation(WithPackage):
    """Installed under a folder that stands for the root of a machine."""

    def dpkg(self, *arguments):
        done = run("dpkg", f"--root={self.root}", "--force-script-chrootless", "--force-depends", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.root.chmod(0o755)
        for folder in ("etc", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        (self.root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
        (self.root / "etc/group").write_text("root:x:0:\n")
        self.before = self.files()
        self.dpkg("-i", self.deb)

    def files(self):
        """What is there, but dpkg's own books and what tools of shadow leave beside the files they change."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()
                and not str(path.relative_to(self.root)).startswith(("var/lib/dpkg/", "var/log/"))
                and not re.match(r"etc/(passwd|group|g?shadow|\.pwd|subuid|subgid)", str(path.relative_to(self.root)))}

    def user(self):
        line = re.search(r"(?m)^spillway:[^:]*:(\d+):(\d+):[^:]*:([^:]*):(.*)$", (self.root / "etc/passwd").read_text())
        self.assertIsNotNone(line, "the user is there")
        return int(line.group(1)), int(line.group(2)), line.group(3), line.group(4)

    def test_its_user_can_do_nothing_else(self):
        uid, gid, home, shell = self.user()
        self.assertLess(uid, 1000, "a user of the system")
        self.assertEqual((home, os.path.basename(shell)), ("/var/lib/spillway", "nologin"))
        status = (self.root / CONFIG).stat()
        self.assertEqual((status.st_uid, status.st_gid, oct(status.st_mode & 0o777)), (0, gid, "0o640"), "it may hold a key")

    def test_it_serves_as_its_own_user(self):
        uid, gid, _, _ = self.user()
        state = self.root / "var/lib/spillway"
        cache = self.root / "var/cache/spillway"
        for folder in (state, cache):  # what systemd makes of StateDirectory and CacheDirectory
            folder.mkdir(parents=True)
            os.chown(folder, uid, gid)
        shutil.copy(serving.LONGNEEDLE, state / "model.gguf")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = self.root / CONFIG
        config.write_text(f"model = \"{state}/model.gguf\"\nport = {port}\nmax-model-len = 2048\n"
                          f"host-memory = \"64MiB\"\ndisk-path = \"{state}\"\ndisk-memory = \"64MiB\"\n")
        [start] = self.unit()["ExecStart"]
        self.assertEqual(start, f"/usr/bin/spillway serve --config /{CONFIG}")
        command = shlex.split(start.replace(" /", f" {self.root}/").replace("/usr/bin", f"{self.root}/usr/bin", 1))
        log = self.enterContext(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all",
                                    "--bounding-set=-all", "--no-new-privs", *command], cwd=state, stdout=log, stderr=log,
                                   env={"HF_HOME": str(cache), "PATH": "/usr/bin:/bin"}, umask=0o077)
        try:
            self.ask(process, port)
            self.assertIn(f"Uid:\t{uid}\t", pathlib.Path(f"/proc/{process.pid}/status").read_text())
        except BaseException:
            process.kill()
            process.wait()
            log.seek(0)
            print(log.read())
            raise
        process.terminate()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertTrue(any(path.stat().st_uid == uid for path in state.iterdir() if path.name != "model.gguf"),
                        "the disk tier wrote as that user")

    def ask(self, process, port):
        server = serving.Server.__new__(serving.Server)
        server.port = port
        for _ in range(1200):
            self.assertIsNone(process.poll(), "it ended")
            try:
                if server.request("GET", "/ready")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.05)
        status, _, text = server.request("POST", "/v1/completions", {"prompt": "one two three", "max_tokens": 4})
        self.assertEqual(status, 200, text)

    def test_it_goes_without_a_trace(self):
        (self.root / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
        (self.root / "etc/systemd/system/multi-user.target.wants/spillway.service").symlink_to(
            "/usr/lib/systemd/system/spillway.service")  # what `systemctl enable` makes
        for folder in ("var/lib/spillway", "var/cache/spillway"):
            (self.root / folder).mkdir(parents=True)
            (self.root / folder / "state").touch()
        self.dpkg("--remove", "spillway")
        self.assertEqual(self.files() - self.before, {CONFIG, "var/lib/spillway/state", "var/cache/spillway/state"},
                         "config and state stay for the next time")
        self.dpkg("--purge", "spillway")
        self.assertEqual(self.files(), self.before)
        for name in ("passwd", "group"):
            self.assertNotIn("spillway", (self.root / "etc" / name).read_text())


if __name__ == "__main__":
    unittest.main()
