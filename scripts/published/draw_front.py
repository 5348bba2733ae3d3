"""Draw docs/results/front.gif from points.gif and digits.gif. These files are animations of shipped
runs:

python -m nsgf sample --pretrained roll --nfe 20 --out points.gif    # mnist: digits.gif
"""

from PIL import Image, ImageDraw, ImageFont, ImageSequence

WORDS, frames = ("points", "digits"), []
moving = [Image.open(f"{word}.gif") for word in WORDS]
for pair in zip(*map(ImageSequence.Iterator, moving), strict=True):
    frames.append(Image.new("RGB", (616, 226), "white"))
    for image, left, width, word in zip(pair, (0, 216), (200, 400), WORDS, strict=True):
        half = image.convert("RGB").crop((0, 28, *image.size))  # cut off the title
        frames[-1].paste(half.resize((width, 200), Image.Resampling.LANCZOS), (left, 0))
        place, font = (left + width / 2, 214), ImageFont.load_default(18)
        ImageDraw.Draw(frames[-1]).text(place, f"noise to {word}", "black", font, "mm")
colors = [(k, k, k) for k in range(0, 256, 17)]
# colours from white to red
colors += [(255 - 3 * k, 255 - 27 * k, 255 - 27 * k) for k in range(1, 9)]
palette = Image.new("P", (1, 1))
palette.putpalette([value for color in colors for value in color])
first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
times, file = [700, *[90] * (len(others) - 1), 2000], "docs/results/front.gif"
first.save(file, save_all=True, append_images=others, duration=times, loop=0)
