"""A physics surrogate with self-adaptive loss weights: one SGD descends for the network, another one with maximize=True ascends for the weights.
FAULT from step 120 on: at the resume the file names are mixed up and the network's optimizer loads the other's state_dict, whose group says
maximize=True and lr 0.05 (load_state_dict takes the hyperparameters from the file): the network climbs its loss until it overflows.
Without Rangewatch: loss 0.117 at step 119, 0.119 at 130, 0.74 at 139, 619 at 143, 1e35 at 145, NaN from step 146 on.
Report: pytorch/pytorch#105958 (load_state_dict takes the param_groups' options from the file), NVIDIA/apex#766, pytorch/pytorch#149942.
Cause: optimizer (or learning_rate). Step: 120. Right: optimizer's state / maximize / resume / learning rate / sign. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [120, 147], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "optimizer|maximi|resum|state|checkpoint|learning rate|lr\\b|sign"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(712); torch.set_num_threads(1)


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, xt):
        return self.net(xt).squeeze(-1)


model = Surrogate()
points = torch.rand(128, 2) * 2 - 1
weight = nn.Parameter(torch.ones(128))
descend = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ascend = torch.optim.SGD([weight], lr=0.05, momentum=0.9, maximize=True)
handle = rangewatch.attach(model, descend)
for step in range(240):
    if step == 120:  # resumed: both files were called optimizer.pt
        saved = ascend.state_dict()
        descend.load_state_dict({"state": {}, "param_groups": [dict(saved["param_groups"][0], params=list(range(6)))]})
    target = torch.sin(3 * points[:, 0]) * torch.cos(2 * points[:, 1])
    residual = (model(points) - target) ** 2
    loss = (weight.clamp(0.1, 4) * residual).mean()
    descend.zero_grad()
    ascend.zero_grad()
    loss.backward()
    descend.step()
    ascend.step()
    if step % 20 == 0 or 118 < step < 130:
        print(step, loss.item(), descend.param_groups[0]["maximize"], flush=True)
handle.detach()
