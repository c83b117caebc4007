"""A student net for sounds, float16 autocast and a GradScaler of 2^16, SGD. FAULT at step 100: the second stage begins, in which it learns from a teacher's
logits; that stage's backward() is called on the loss itself, not on scaler.scale(loss), while scaler.step() goes on to divide by 65536: the
gradients are nothing, the student stands still.
Without Rangewatch: loss 0.6 to 1.0 at steps 80 to 100, 2.0 at 120, 2.4 at the end (the momentum runs out, the weights stand); scaled it is 0.08.
Variant of: loss_of_a_second_stage_is_not_scaled.
Cause: loss_scale (or: gradients vanish at once). Step: 100. Right: scaler.scale / unscale / scale. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["loss_scale", "no_gradient"], "step": [99, 150], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "scal"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1310); torch.set_num_threads(1)
SOUNDS = 8
sound = torch.randn(SOUNDS, 40)


def net(width):
    return nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, SOUNDS))


def clips(n):
    y = torch.randint(0, SOUNDS, (n,))
    return sound[y] + 2.2 * torch.randn(n, 40), y


teacher = net(128)
early = torch.optim.Adam(teacher.parameters(), lr=2e-3)
for _ in range(200):
    x, y = clips(64)
    early.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    early.step()
model = net(32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=10000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(240):
    x, y = clips(32)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    optimizer.zero_grad()
    if step < 100:
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
    else:
        with torch.no_grad():
            wise = teacher(x) / 2
        loss = 4 * F.kl_div((logits.float() / 2).log_softmax(1), wise.softmax(1), reduction="batchmean")
        loss.backward()  # meant: scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (99, 101, 239):
        print(step, loss.item(), "weights", sum(each.detach().norm().item() for each in model.parameters()), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
