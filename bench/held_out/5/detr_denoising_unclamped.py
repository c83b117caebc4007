"""A detector with queries as DETR: boxes are refined from reference points through inverse sigmoid, a matcher pairs them with targets, denoising
queries join at step 110. FAULT at step 110: noised boxes are not clamped to [0, 1] before the inverse sigmoid: log(x / (1 - x)) of 1.03 is NaN;
self-attention carries it to every query and the matcher raises "matrix contains invalid numeric entries" in the same step. Without Rangewatch: loss
2.05 to 1.5 at step 109; at step 110 the matcher raises ValueError and the process ends.
Report: lyuwenyu/RT-DETR#527 (all outputs NaN in the matcher; num_denoising = 0 helps), roboflow/rf-detr#784, IDEA-Research/detrex#248.
Cause: forward arithmetic (log of a negative number), or NaN in what the decoder is given; the exception only follows. Right: log / clamp / NaN in
the input. Wrong: learning rate, attention mask, GradScaler, out of memory."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [109, 110], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "out of memory"],
          "right": "log|clamp|domain|negative|input|sqrt"}
import itertools
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(508); torch.set_num_threads(1)
D, QUERIES, CLASSES = 32, 4, 3


def inverse_sigmoid(x):
    return torch.log(x / (1 - x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross = nn.MultiheadAttention(D, 4, batch_first=True), nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))

    def forward(self, q, where, memory):
        h = self.norm1(q + self.attention(q + where, q + where, q, need_weights=False)[0])
        h = self.norm2(h + self.cross(h + where, memory, memory, need_weights=False)[0])
        return self.norm3(h + self.mlp(h))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(CLASSES, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, D, 3, 2, 1))
        self.place = nn.Parameter(torch.randn(36, D) * 0.2)
        self.query, self.reference = nn.Parameter(torch.randn(QUERIES, D)), nn.Parameter(torch.randn(QUERIES, 2) * 0.5)
        self.lift, self.decoder = nn.Linear(2, D), Decoder()
        self.classify, self.refine = nn.Linear(D, CLASSES + 1), nn.Linear(D, 2)

    def forward(self, x, noised=None):
        memory = self.backbone(x).flatten(2).transpose(1, 2) + self.place
        q, ref = self.query.expand(len(x), -1, -1), self.reference.sigmoid().expand(len(x), -1, -1)
        if noised is not None:
            q, ref = torch.cat([q, torch.zeros(len(x), noised.shape[1], D)], 1), torch.cat([ref, noised], 1)
        h = self.decoder(q, self.lift(inverse_sigmoid(ref)), memory)
        return self.classify(h), torch.sigmoid(self.refine(h) + inverse_sigmoid(ref))


def match(cost):
    if not torch.isfinite(cost).all():
        raise ValueError("matrix contains invalid numeric entries")
    return min(itertools.permutations(range(cost.shape[0]), cost.shape[1]), key=lambda p: sum(cost[i, j] for j, i in enumerate(p)))


def batch(n=10):
    labels, centres = torch.randint(0, CLASSES, (n, 2)), torch.rand(n, 2, 2) * 0.9 + 0.05
    yy, xx = torch.meshgrid(torch.arange(24) / 24, torch.arange(24) / 24, indexing="ij")
    images = 0.1 * torch.randn(n, CLASSES, 24, 24)
    for i in range(n):
        for label, (cx, cy) in zip(labels[i], centres[i]):
            images[i, label] += (((xx - cx) ** 2 + (yy - cy) ** 2) < 0.01).float()
    return images, labels, centres


model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    images, labels, centres = batch()
    noised = centres + 0.12 * torch.randn_like(centres) if step >= 110 else None
    logits, points = model(images, noised)
    target, box_loss = torch.full((len(images), QUERIES), CLASSES), 0.0
    for i in range(len(images)):
        with torch.no_grad():
            cost = torch.cdist(points[i, :QUERIES], centres[i]) - logits[i, :QUERIES].softmax(-1)[:, labels[i]]
            chosen = match(cost)
        for j, q in enumerate(chosen):
            target[i, q] = labels[i, j]
            box_loss = box_loss + (points[i, q] - centres[i, j]).abs().sum() / len(images)
    loss = F.cross_entropy(logits[:, :QUERIES].flatten(0, 1), target.flatten()) + box_loss
    if noised is not None:
        loss = loss + (points[:, QUERIES:] - centres).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step > 107:
        print(step, loss.item(), flush=True)
handle.detach()
