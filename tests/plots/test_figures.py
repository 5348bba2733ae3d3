from nsgf.plots.figures import FEW_POINTS, draw_curves


def test_curves_show_each_phase_and_single_points():
    many = [(step, 1.0 / step, 2.0) for step in range(1, FEW_POINTS + 1)]
    axes = draw_curves({"nsgf": many, "nsf": [(7, 3.0, 4.0)]}).axes
    shown = [panel.lines[0] for panel in axes]
    assert [line.get_marker() for line in shown] == ["None", ".", "None", "."]
    assert [line.get_ydata()[0] for line in shown] == [1.0, 3.0, 2.0, 4.0]
