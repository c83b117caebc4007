"""A small transformer encoder that foretells the melting point of a protein from its sequence, three microbatches of 16 a step (NAdam). FAULT from the start:
the output has the shape (16, 1), the target (16,): the own Huber loss compares each output with each target, and the net learns one value for all.
Without Rangewatch: loss 0.80 to 0.3 to 0.5; the spread of the outputs is 0.05 where that of the targets is 0.95. With the shapes right: 0.005.
Cause: data or forward_arithmetic (shapes that are broadcast). Step: any. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 180], "place": None, "rank": None,
          "right": "(?i)shape|broadcast|squeeze|column|dimension", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2712); torch.set_num_threads(1)
worth = torch.randn(20)


def proteins(n):
    seq = torch.randint(0, 20, (n, 14))
    return seq, worth[seq].sum(1) / 14 ** 0.5


class Melting(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.residue = nn.Embedding(20, width)
        self.place = nn.Parameter(0.02 * torch.randn(14, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.point = nn.Linear(width, 1)

    def forward(self, seq):
        return self.point(self.encoder(self.residue(seq) + self.place).mean(1))


def huber(out, y, delta=1.0):
    miss = out - y
    small = miss.abs().clamp(max=delta)
    return (0.5 * small ** 2 + delta * (miss.abs() - small)).mean()


net = Melting()
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(3):
        seq, y = proteins(16)
        loss = huber(net(seq), y) / 3
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        with torch.no_grad():
            seq, y = proteins(256)
            out = net(seq)[:, 0]
        print(step, total, "true", huber(out, y).item(), "spread of outputs", out.std().item(), "of targets", y.std().item(), flush=True)
    handle.log(loss=total)
handle.detach()
