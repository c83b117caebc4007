"""A GRU that writes words backwards, float16 autocast, GradScaler with a first scale of 2^22: five of the first steps overflow and are skipped, the scale
comes down to 131072, and one more step is skipped about step 110, as it may happen. The loss is a sum over letters. HEALTHY.
Without Rangewatch: loss 17.4 to 1.9; scale 4194304, 131072 at step 20, 65536 at the end; six skipped steps of 220."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(834); torch.set_num_threads(1)
LETTERS, WIDTH = 12, 48


class Reverser(nn.Module):  # a GRU that reads a word and one that writes it backwards
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS + 1, WIDTH)
        self.reader, self.writer = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.mix, self.out = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, word, before):
        memory, state = self.reader(self.letter(word))
        h, _ = self.writer(self.letter(before), state)
        weight = (h @ memory.transpose(1, 2) / WIDTH ** 0.5).softmax(-1)
        return self.out(torch.tanh(self.mix(torch.cat([h, weight @ memory], -1))))


model = Reverser()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=2000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(220):
    word = torch.randint(0, LETTERS, (32, 7))
    target = word.flip(1)
    before = torch.cat([torch.full((32, 1), LETTERS), target[:, :-1]], 1)
    with torch.autocast("cpu", torch.float16):
        out = model(word, before)
    loss = F.cross_entropy(out.float().flatten(0, 1), target.flatten(), reduction="sum") / 32
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < scale
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped so far", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
