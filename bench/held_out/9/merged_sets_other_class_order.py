"""A small dense net for findings in scans. FAULT from step 140 on: a second data set is merged in, half of each batch, whose classes are numbered in
another order; the same finding has two numbers. All is finite, the loss leaps and then stays above log 2.
Without Rangewatch: loss 4.69 to 0.0023 at step 139, 5.59 at step 140, 0.72 to 0.91 from step 180 on; accuracy 1.0, then about one half.
Report: mlmed/torchxrayvision#130 (merged sets: other order of labels), open-mmlab/mmdetection#3019, cugbrs/MLRSNet#4 (order of labels differs).
Cause: data. Step: 140. Right: labels / classes / data / batch. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [140, 200], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "label|class|data|batch|target|dataset"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(805); torch.set_num_threads(1)
FINDINGS = 7
lesion = torch.randn(FINDINGS, 1, 6, 6)
order_of_second = torch.tensor([3, 0, 5, 1, 6, 2, 4])  # alphabetical there, by frequency here


class DenseNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(48)
        self.head = nn.Linear(48, FINDINGS)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = torch.cat([x, F.relu(self.a(x))], 1)
        x = torch.cat([x, F.relu(self.b(x))], 1)
        return self.head(F.relu(self.norm(x)).amax((2, 3)))


def batch(n, merged):
    finding = torch.randint(0, FINDINGS, (n,))
    scan = 0.5 * torch.randn(n, 1, 14, 14)
    for i in range(n):
        r, c = torch.randint(0, 9, (2,))
        scan[i, :, r:r + 6, c:c + 6] += lesion[finding[i]]
    label = finding.clone()
    if merged:
        label[n // 2:] = order_of_second[finding[n // 2:]]
    return scan, label


model = DenseNetLike()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    scan, label = batch(48, merged=step >= 140)
    logits = model(scan)
    loss = F.cross_entropy(logits, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (139, 141) or step == 299:
        print(step, loss.item(), "accuracy", (logits.argmax(1) == label).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
