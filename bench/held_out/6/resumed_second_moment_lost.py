"""A small vision transformer with AdamW. FAULT before step 120: the optimizer's state comes back from a checkpoint with step and exp_avg, and
exp_avg_sq of zero. The bias correction of step 121 no longer undoes (1 - beta2), so that an update is many times what it should be. All stays finite.
Without Rangewatch: loss 2.16 to 0.58 at step 119 with updates of 0.001; the update at step 120 is 0.70; loss 8.87 at step 121, 0.60 at the end.
Report: KempnerInstitute/KempnerForge#115, EvolvingLMMs-Lab/OneVision-Encoder#65 (moments silently lost when resuming; both moments there, so that theirs
is milder: that only the second is lost is my sharpening).
Cause: optimizer (its state). Step: 120. Right: state / exp_avg_sq / resume. Wrong: mask, GradScaler."""
EXPECT = {"cause": ["optimizer"], "step": [120, 122], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask"],
          "right": "state|exp_avg_sq|moment|resume|checkpoint|optimizer"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(617); torch.set_num_threads(1)


class ViT(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.patch, self.cls = nn.Linear(16, dim), nn.Parameter(torch.zeros(1, 1, dim))
        self.place = nn.Parameter(0.02 * torch.randn(1, 10, dim))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)])
        self.head = nn.Linear(dim, 8)

    def forward(self, x):
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x)], 1) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


kinds = torch.randn(8, 9, 16)
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 120:  # a sharded checkpoint comes back: step and exp_avg are there, the second moments are not
        for state in optimizer.state.values():
            state["exp_avg_sq"].zero_()
    y = torch.randint(0, 8, (24,))
    loss = F.cross_entropy(model(kinds[y] + 1.5 * torch.randn(24, 9, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    before = model.head.weight.detach().clone()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124 or step == 219:
        print(step, loss.item(), (model.head.weight - before).abs().max().item(), flush=True)
handle.detach()
