"""A net for labels and depth of small pictures in float16 autocast, trained with SGD and a GradScaler. FAULT from step 0 on: the loss of the labels is
scaled, that of the depth has a backward of its own without scale(): unscaling divides its gradients by 65536, and the depth head does not learn.
Without Rangewatch: loss of the labels 1.58 to 0.0001, of the depth 1.54 to 0.9 to 1.2 throughout; the scale is 65536 to the end.
Variant of: second_of_two_losses_is_not_scaled (here labels and depth, from the start).
Cause: loss_scale (no_gradient would do: the head's gradient is next to nothing). Step: from 0 on. Right: scale / scaler / loss. Wrong: mask, data."""
EXPECT = {"cause": ["loss_scale", "no_gradient"], "step": [0, 150], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "corrupt"],
          "right": "scal|GradScaler"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1412); torch.set_num_threads(1)
thing = torch.randn(5, 48)


class LabelAndDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.label, self.depth = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.label(h), self.depth(h)[:, 0]


model = LabelAndDepth()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    y, far = torch.randint(0, 5, (32,)), 1 + 2 * torch.rand(32)
    x = thing[y] / far[:, None] + 0.2 * torch.randn(32, 48)
    with torch.autocast("cpu", torch.float16):
        label, depth = model(x)
    loss_label, loss_depth = F.cross_entropy(label.float(), y), F.smooth_l1_loss(depth.float(), far)
    optimizer.zero_grad()
    scaler.scale(loss_label).backward(retain_graph=True)
    loss_depth.backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss_label.item(), loss_depth.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=(loss_label + loss_depth).item())
handle.detach()
