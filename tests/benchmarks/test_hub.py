"""The benchmark of the hub: its command line, its figures, and the responses of its API."""

from __future__ import annotations

import contextlib
import io
import json

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.figures import Demand, Figure
from benchmarks.hub import objects, protobuf
from benchmarks.hub.__main__ import parse
from benchmarks.run import Unit


class CommandLineTests(SynchronousTestCase):
    """Flags."""

    def test_everything_is_measured_unless_parts_are_chosen(self):
        """--only can be given several times."""
        self.assertIsNone(parse([]).only)
        self.assertEqual(parse(["--only", "small", "--only", "lists"]).only, ["small", "lists"])

    def test_an_unknown_part_is_refused_with_the_known_ones(self):
        """The error lists the existing parts."""
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            self.assertRaises(SystemExit, parse, ["--only", "nonsense"])
        self.assertIn("outage", output.getvalue())


class FigureTests(SynchronousTestCase):
    """Figures and their requirements."""

    def test_a_ratio_is_that_of_neighbours(self):
        """Each run of the hub is compared with the run of nginx just before it."""
        figure = Figure(Demand("x", Unit.SECONDS, 1.3, True), [2.0, 3.0], [1.0, 2.0])
        self.assertEqual(figure.judged, [2.0, 1.5])
        self.assertEqual(figure.verdict, "misses")

    def test_a_figure_holds_up_to_what_is_demanded(self):
        """The bound itself suffices, as maximum and minimum; some figures have no requirement."""
        self.assertEqual(Figure(Demand("x", Unit.SECONDS, 0.5), [0.5]).verdict, "holds")
        self.assertEqual(Figure(Demand("x", Unit.SECONDS, 0.5), [0.51]).verdict, "misses")
        rate = Demand("x", Unit.RATE, 0.85, ratio=True, higher_is_better=True)
        self.assertEqual(Figure(rate, [85.0], [100.0]).verdict, "holds")
        self.assertEqual(Figure(rate, [84.0], [100.0]).verdict, "misses")
        self.assertEqual(Figure(Demand("x", Unit.SECONDS), [9.0]).verdict, "")

    def test_a_row_has_both_medians_what_is_judged_and_the_verdict(self):
        """All values of a figure are in one row."""
        figure = Figure(Demand("list", Unit.SECONDS, 1.3, True), [0.6], [0.5])
        self.assertEqual(
            figure.row().split(),
            ["list", "0.50", "s", "0.60", "s", "1.20", "1.20", "..", "1.20", "<=", "1.3", "holds"],
        )


class ProtobufTests(SynchronousTestCase):
    """Pods as API servers encode them."""

    def test_fields_have_the_numbers_of_the_published_schema(self):
        """Name, namespace and labels are 1, 3 and 11 of the metadata, which is 1 of the pod."""
        metadata = {"name": "a", "namespace": "b", "labels": {"k": "v"}}
        self.assertEqual(
            protobuf.message("Pod", {"metadata": metadata}),
            b"\x0a\x0e\x0a\x01a\x1a\x01b\x5a\x06\x0a\x01k\x12\x01v",
        )

    def test_what_is_an_object_there_and_none_in_json(self):
        """A time has seconds, a port has a type, and quantities are messages with a string."""
        self.assertEqual(
            protobuf.message("ContainerStateRunning", {"startedAt": "1970-01-01T00:02:08Z"}),
            b"\x0a\x03\x08\x80\x01",
        )
        self.assertEqual(
            protobuf.message("HTTPGetAction", {"port": 300}), b"\x12\x05\x08\x00\x10\xac\x02"
        )
        self.assertEqual(
            protobuf.message("ResourceRequirements", {"limits": {"cpu": "1"}}),
            b"\x0a\x0a\x0a\x03cpu\x12\x03\x0a\x011",
        )

    def test_every_pod_has_its_mark_and_place_for_a_version(self):
        """The driver counts marks, and the API writes versions."""
        pod = objects.pod(3)
        for body in (json.dumps(pod).encode(), protobuf.message("Pod", pod)):
            for text in (objects.MARK, objects.VERSION):
                self.assertEqual(body.count(text.encode()), 1)
