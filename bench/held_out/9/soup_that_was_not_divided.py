"""A net for bird song, SGD. FAULT before step 150: the weights are replaced by the average of three earlier ones, and the sum was not divided by three:
each weight is three times as large, the logits about eighty times. All stays finite; the net ends as one that says the same for all.
Without Rangewatch: loss 2.09 to 0.23 at step 149, 61.1 at step 150, 2.07 (log of 8 is 2.08) at the end; norm of the head 3.69, then 10.7.
Report: NVIDIA-NeMo/Skills#415 (averaging of checkpoints went wrong), wandb/senpai#2142 (an averaged model that is 50 to 400 times worse).
Cause: weight. Step: 150. Right: weights / load / overwritten / checkpoint. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["weight"], "step": [150, 153], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "weight|checkpoint|load|overwrit|parameter|average|jump|written"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(811); torch.set_num_threads(1)
SPECIES = 8
song = torch.randn(SPECIES, 1, 12, 8)


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.GELU(),
                                  nn.Conv2d(32, 32, 3, padding=1), nn.GELU())
        self.head = nn.Linear(32 * 24, SPECIES)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


model = BirdNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(model, optimizer)
kept = []
for step in range(260):
    if step == 150:
        total = {k: sum(one[k] for one in kept) for k in kept[0]}  # sum, and nobody divides by three
        model.load_state_dict(total)
    species = torch.randint(0, SPECIES, (32,))
    spectrogram = song[species] + 1.5 * torch.randn(32, 1, 12, 8)
    wrong = torch.rand(32) < 0.08  # as annotators are
    species = torch.where(wrong, torch.randint(0, SPECIES, (32,)), species)
    logits = model(spectrogram)
    loss = F.cross_entropy(logits, species)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (109, 129, 149):
        kept.append({k: v.clone() for k, v in model.state_dict().items()})
    if step % 20 == 0 or 149 <= step < 155 or step == 259:
        print(step, loss.item(), "norm of the head", model.head.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
