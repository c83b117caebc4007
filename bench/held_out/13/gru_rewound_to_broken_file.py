"""A GRU follows a robot's arm; at step 130 the training is rewound to the file of step 90. FAULT at step 130: the file was damaged on its disk: a row of
the GRU's recurrent weight is NaN in it, and load_state_dict() does not look.
Without Rangewatch: loss 1.20 to 0.014 at step 129, NaN from step 130 on.
Variant of: checkpoint_with_nan_is_loaded_in_the_middle.
Cause: weight. Step: 130. Place: gru.weight_hh_l0. Right: checkpoint / load / weight. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [129, 131], "place": ".*gru.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "checkpoint|load|weight|parameter"}
import io
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1330); torch.set_num_threads(1)
turn = torch.linalg.qr(torch.randn(4, 4))[0]


class ArmNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.joint = nn.Linear(4, 24)
        self.gru = nn.GRU(24, 40, batch_first=True)
        self.next = nn.Linear(40, 4)

    def forward(self, x):
        return x + self.next(self.gru(F.silu(self.joint(x)))[0])


def ways(n):
    rows = [torch.randn(n, 4)]
    for _ in range(12):
        rows.append(torch.tanh(1.5 * rows[-1] @ turn) + 0.05 * torch.randn(n, 4))
    return torch.stack(rows, 1)


model = ArmNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
file = io.BytesIO()
for step in range(220):
    if step == 90:
        state = {name: each.clone() for name, each in model.state_dict().items()}
        state["gru.weight_hh_l0"][50] = float("nan")  # what the disk made of it
        torch.save(state, file)
    if step == 130:
        file.seek(0)
        model.load_state_dict(torch.load(file))
    x = ways(32)
    loss = F.mse_loss(model(x[:, :-1]), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 132:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
